"""`main`: runs a command and turns its end into an exit code.

A `RaycdcError` is for the user: its text goes to stderr, without a traceback unless ``--verbose`` was given. Anything
else is a bug, of raycdc or of a third party's plug-in, and shows where it happened. Nothing heavy is imported here, so
that every command starts at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from raycdc.core.terminal_text import printable_text
from raycdc.errors import ExitCode, RaycdcError, UnexpectedError
from raycdc.plugins import missing_extra, third_parties


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's) and return the exit code.

    The process ends here where the run has left engines that come up: they die with it, and nobody waits for them.
    """
    code = _run(arguments)
    left = sys.modules.get("raycdc.core.background_tasks")
    if arguments is None and left is not None and left.now():
        _flush()
        os._exit(code)
    return code


def _flush() -> None:
    """What was written is out; whoever read it may have left."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "--verbose" in words
    is_run = words[:1] == ["run"]
    try:
        with _ended_by_sigterm() if is_run or words[:2] == ["bench", "run"] else contextlib.nullcontext():
            from raycdc.cli.app import run_app

            return run_app(words)
    except _TerminatedError:
        # Only a run is a service; another command that is ended so has not done what it was asked for.
        return int(ExitCode.DONE if is_run else ExitCode.INTERRUPTED)
    except RaycdcError as error:
        if verbose:
            _print_traceback(error)
        else:
            print(printable_text(str(error)), file=sys.stderr)
        if isinstance(error, UnexpectedError):
            more = "" if verbose else " --verbose shows its traceback."
            print(f"{_bug()}{more}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has left (`| head`). Keep the interpreter from complaining when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except ModuleNotFoundError as error:
        # Of an optional package, wherever it is imported: what a user can install is no bug.
        fix = missing_extra(error.name or "")
        if not fix or verbose:
            _print_traceback(error)
        print(f"This {fix}" if fix else _bug(), file=sys.stderr)
        return int(ExitCode.CONFIG if fix else ExitCode.BUG)
    except Exception as error:  # noqa: BLE001 - the edge of the process: show the bug, keep the exit code honest
        _print_traceback(error)
        print(_bug(), file=sys.stderr)
        return int(ExitCode.BUG)


class _TerminatedError(BaseException):
    """SIGTERM came before there was anything to end in order, or after. Nobody may take it for an error."""


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command in order at any moment, as a running pipeline does, which has a handler of its own."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_traceback(error: BaseException) -> None:
    from raycdc.runtime.unexpected import traceback_of

    print(printable_text(traceback_of(error)), file=sys.stderr)


def _bug() -> str:
    """A message about the code that an unexpected error is in, as far as can be told."""
    plugins = " and ".join(third_parties())
    if plugins:
        return f"This is a bug in the plug-in {plugins} or in raycdc; report it there first, with the lines above."
    return "This is a bug in raycdc; please report it with the lines above."
