"""`main`: runs a command and turns its result into an exit code.

The text of a `RaycdcError` is for the user: it is printed to stderr, without a traceback unless ``--verbose`` was
given. Any other error is a bug of raycdc or of a plug-in, and is printed with its place in the code. Nothing heavy is
imported here, so that every command starts quickly.
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

    If the run has left engines that are still starting, the process ends here without waiting, and the engines end with
    it.
    """
    code = _run(arguments)
    left = sys.modules.get("raycdc.core.background_tasks")
    if arguments is None and left is not None and left.now():
        _flush()
        os._exit(code)
    return code


def _flush() -> None:
    """Flush the output, even if its reader is gone."""
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
        # SIGTERM is a normal end only for a run, which is a service. Any other command was interrupted in its work.
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
        # The program that reads our output has ended (`| head`). Prevent an error message when the interpreter flushes
        # the output at its exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except ModuleNotFoundError as error:
        # A missing optional package, wherever it is imported, is no bug: the user can install it.
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
    """Raised by SIGTERM when no pipeline runs; it ends the command in order, and is not reported as an error."""


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Raise `_TerminatedError` at SIGTERM within the block, so that the command ends in order.

    A running pipeline replaces this handler by its own.
    """

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
    """Return a message about the code that raised an unexpected error, as far as known."""
    plugins = " and ".join(third_parties())
    if plugins:
        return f"This is a bug in the plug-in {plugins} or in raycdc; report it there first, with the lines above."
    return "This is a bug in raycdc; please report it with the lines above."
