"""Resolves references in texts of the configuration. References keep secrets out of the configuration.

| reference | is |
|---|---|
| ``${env:NAME}``, ``${env:NAME:-default}`` | a variable of the environment |
| ``${file:PATH}`` | the text of a file, relative to the working directory |
| ``${command:WORDS}`` | the output of a command, run without a shell |
| ``${plugin:NAME ARGUMENT}`` | the result of a function for ``ARGUMENT``; NAME is an entry point of `PLUGINS`, or \
``module:function`` |

``$${`` stands for a literal ``${``. The value of a reference is never shown in a message. All values except those of
environment variables may change later. A text with such a reference is a `Renewed`, and `newest` resolves it again.
Every client calls `newest` before it logs in, so a password can be changed without a restart. The secrets of tasks must
not appear in their arguments, so they are in private files, which `private_text` reads.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

#: The greatest depth of nested tables and lists; no option needs more than a few levels.
DEPTH_MAX = 32
#: The largest file of a secret or certificate.
FILE_BYTES_MAX = 1 << 20

#: The timeout of a command or function, and the time for which its result is reused, because epochs log in more often.
ANSWER_TIMEOUT_S = 30.0
KEPT_S = 5.0
#: A function that hangs cannot be ended. Callers of the same function wait for it for this time; then it is called
#: again.
HANGS_S = 300.0
#: Entry points of packages: functions that take one text and return another.
PLUGINS = "raycdc.secrets"

_REFERENCE = re.compile(r"\$\$\{|\$\{(\w*):([^}]*)\}")

#: Kinds of references whose value may change while a process runs.
_CHANGING = ("file", "command", "plugin")

KeyPath = tuple[str | int, ...]


class Renewed(str):
    """A text that was resolved from `template` when the configuration was read.

    Picklable. It is used like any other text; `newest` resolves it again.
    """

    template: str
    #: True if the driver sent the text to this process. The driver has logged in with it before.
    sent: bool

    def __new__(cls, text: str, template: str = "", *, sent: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.template, made.sent = template, sent
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # Sends the value that this process read last, which may be newer than the text.
        return _sent, (_LAST.get(self.template, (str(self), frozenset()))[0], self.template)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _sent(text: str, template: str) -> Renewed:
    return Renewed(text, template, sent=True)


def newest(text: str) -> str:
    """Return `text` with its references resolved again.

    A text without references is returned unchanged.

    The previous value in this process is returned if a reference cannot be read on this machine or at this moment, or
    if it has become empty, as a file does that is being written. May block: see `ANSWER_TIMEOUT_S`. Thread-safe.
    """
    if not isinstance(text, Renewed):
        return text
    resolver = ReferenceResolver(os.environ)
    read = resolver.resolve(text.template)
    last, empty = _LAST.get(text.template, (str(text), frozenset()))
    if resolver.problems or not isinstance(read, str) or (read != last and resolver.empty - empty):
        return last
    _LAST[text.template] = str(read), frozenset(resolver.empty)
    return str(read)


def read_again(texts: Iterable[object]) -> None:
    """Read the references in `texts` again, so that other processes are sent their present values."""
    for text in texts:
        if isinstance(text, Renewed):
            newest(text)


def as_private(text: str) -> str:
    """Return the present value of `text` and its template, for the private file of a task.

    `from_private` reads it.
    """
    return json.dumps([newest(text), text.template if isinstance(text, Renewed) else ""])


def from_private(content: str) -> str:
    """Return the text that `as_private` wrote."""
    text, template = json.loads(content)
    return _sent(text, template) if template else str(text)


#: The last value of each template in this process, and the names of its references that were empty.
_LAST: dict[str, tuple[str, frozenset[str]]] = {}


class _Answers:
    """Results of commands and functions, each kept for `KEPT_S`, because several connections open at the same time.

    Callers of the same command share one call, including its error. Callers of different commands do not wait for each
    other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The time of the last call and its result, which may still be pending, for each kind and argument.
        self._kept: dict[tuple[str, str], tuple[float, Future[str]]] = {}

    def get(self, kind: str, argument: str, ask: Callable[[str], str]) -> str:
        key, now_s = (kind, argument), time.monotonic()
        with self._lock:
            asked_s, answer = self._kept.get(key, (0.0, None))
            if answer is None or (answer.done() and now_s - asked_s > KEPT_S):
                answer = mine = Future[str]()
                self._kept[key] = (now_s, mine)
            else:
                mine = None
        if mine is not None:
            self._ask(key, argument, ask, mine)
        return answer.result()

    def _ask(self, key: tuple[str, str], argument: str, ask: Callable[[str], str], answer: Future[str]) -> None:
        try:
            answer.set_result(ask(argument))
        except BaseException as cause:
            # The result is not kept, so the next caller makes a new call. An interrupt is for this thread alone.
            with self._lock:
                self._kept.pop(key, None)
            answer.set_exception(cause if isinstance(cause, ValueError) else ValueError("was interrupted"))
            raise


_ANSWERS = _Answers()


class _Calls:
    """Calls of functions, each in its own daemon thread, one at a time per function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The start time and the result of the call in progress, for each reference.
        self._under_way: dict[str, tuple[float, Future[object]]] = {}

    def made(self, words: str, call: Callable[[], object]) -> Future[object]:
        """Make the call and return its finished future.

        Raises ValueError if the call takes longer than `ANSWER_TIMEOUT_S`.
        """
        answer = self._begin(words, call)
        if not wait([answer], ANSWER_TIMEOUT_S).done:
            raise ValueError(f"did not answer within {ANSWER_TIMEOUT_S:g} s")
        return answer

    def _begin(self, words: str, call: Callable[[], object]) -> Future[object]:
        now_s = time.monotonic()
        with self._lock:
            since_s, answer = self._under_way.get(words, (0.0, None))
            if answer is not None and now_s - since_s < HANGS_S:
                return answer
            answer = Future()
            thread = threading.Thread(target=self._run, args=(words, call, answer), name="secret", daemon=True)
            try:
                thread.start()
            except RuntimeError as cause:
                raise ValueError(f"cannot be called: {cause}") from None
            self._under_way[words] = (now_s, answer)
            return answer

    def _run(self, words: str, call: Callable[[], object], answer: Future[object]) -> None:
        result: object = None
        failed: BaseException | None = None
        try:
            result = call()
        except BaseException as cause:  # noqa: BLE001 - told to whoever waits for it
            failed = cause
        with self._lock:
            # Later callers start a new call.
            if self._under_way.get(words, (0.0, None))[1] is answer:
                del self._under_way[words]
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(result)


_CALLS = _Calls()


class ReferenceResolver:
    """A resolver of the references of one configuration.

    After `resolve` it has the `problems`, the `locations` of texts with references, and the names of `empty` references
    whose value may change.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []
        self.locations: set[KeyPath] = set()
        self.empty: set[str] = set()

    def resolve(self, value: Any, key_path: KeyPath = ()) -> Any:
        """Return `value` with all references in its texts replaced.

        References that cannot be resolved are added to the problems.
        """
        if len(key_path) > DEPTH_MAX:
            self._problem(key_path[:4], f"tables and lists are nested more than {DEPTH_MAX} deep here")
            return None
        match value:
            case str():
                text = self._text(_REFERENCE.sub(lambda matched: self._replace(matched, key_path), value), key_path)
                return Renewed(text, value) if may_change(value) else text
            case dict():
                return {key: self.resolve(item, (*key_path, key)) for key, item in value.items()}
            case list():
                return [self.resolve(item, (*key_path, index)) for index, item in enumerate(value)]
            case _:
                return value

    def _text(self, text: str, key_path: KeyPath) -> str:
        """Return `text` without characters that no path, name, address or password can have.

        They are reported in the problems.
        """
        if "\0" in text:
            self._problem(
                key_path, "holds a NUL character (\\u0000), which no path, name, address or password may have"
            )
            return text.replace("\0", "")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._problem(key_path, "is not UTF-8 text; an environment variable may hold other bytes")
                return ""
        return text

    def _replace(self, matched: re.Match[str], key_path: KeyPath) -> str:
        if matched[0] == "$${":
            return "${"
        self.locations.add(key_path)
        text = self._said(matched, key_path)
        if not text and matched[1] in _CHANGING:
            self.empty.add(matched[0])
        return text

    def _said(self, matched: re.Match[str], key_path: KeyPath) -> str:
        kind, argument = matched[1], matched[2]
        match kind:
            case "env":
                return self._environment_variable(argument, key_path)
            case "file":
                return self._file(argument, key_path)
            case "command":
                return self._answer(kind, argument, _printed, key_path)
            case "plugin":
                return self._answer(kind, argument, _answered, key_path)
            case _:
                self._problem(
                    key_path,
                    f"{matched[0]} is no reference; known are ${{env:NAME}}, ${{file:PATH}}, ${{command:WORDS}} and "
                    "${plugin:NAME ARGUMENT}",
                )
                return ""

    def _answer(self, kind: str, argument: str, ask: Callable[[str], str], key_path: KeyPath) -> str:
        try:
            return _ANSWERS.get(kind, argument, ask)
        except ValueError as cause:
            # Only our own text is shown, because the text of a command's or function's error may contain the secret.
            self._problem(key_path, f"${{{kind}:{argument.partition(' ')[0]} …}} {cause}")
            return ""

    def _environment_variable(self, argument: str, key_path: KeyPath) -> str:
        name, separator, default = argument.partition(":-")
        value = self._environment.get(name)
        if value is not None:
            return value
        if not separator:
            self._problem(key_path, f"the environment variable {name} is not set (export {name}=...)")
        return default

    def _file(self, argument: str, key_path: KeyPath) -> str:
        try:
            with Path(argument).open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) <= FILE_BYTES_MAX:
                return content.decode().removesuffix("\n").removesuffix("\r")
            reason: str | None = f"it has more than {FILE_BYTES_MAX >> 20} MiB"
        except OSError as cause:
            reason = cause.strerror
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        except ValueError as cause:
            reason = str(cause)
        self._problem(key_path, f"the file {argument} cannot be read: {reason}")
        return ""

    def _problem(self, key_path: KeyPath, text: str) -> None:
        self.problems.append(f"{show_key_path(key_path)}: {text}")


def _printed(words: str) -> str:
    """Return a command's output without its last line end. Raises `ValueError` without quoting the output."""
    try:
        asked = shlex.split(words)
        if not asked:
            raise ValueError("names no command")
        done = subprocess.run(
            asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except OSError as cause:
        raise ValueError(f"cannot be run: {cause.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"did not end within {ANSWER_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise ValueError(f"ended with exit code {done.returncode}; its standard error says why")
    return _one_text(done.stdout)


def _answered(words: str) -> str:
    """Return the result of a function. Raises `ValueError` with only the class name of the function's error."""
    name, _, argument = words.partition(" ")
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            function = getattr(importlib.import_module(module), attribute)
        else:
            (point,) = entry_points(group=PLUGINS, name=name)
            function = point.load()
    except (ImportError, AttributeError) as cause:
        raise ValueError(f"cannot be imported: {cause}") from None
    except ValueError:
        known = ", ".join(sorted({point.name for point in entry_points(group=PLUGINS)})) or "none"
        raise ValueError(f"is neither one plug-in of the group {PLUGINS} ({known}) nor module:function") from None
    call = _CALLS.made(words, partial(function, argument.strip()))
    if (failed := call.exception()) is not None:  # The text may hold the secret.
        raise ValueError(f"failed with {type(failed).__name__}")
    answer = call.result()
    if not isinstance(answer, str):
        raise ValueError(f"answered with {type(answer).__name__}, not with a text")  # noqa: TRY004 - as of all others
    return _one_text(answer.encode())


def _one_text(content: bytes) -> str:
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"answered with more than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("answered with what is no UTF-8 text") from None


def may_change(text: str) -> bool:
    """Return True if `text` has a reference whose value may change later."""
    return any(matched[1] in _CHANGING for matched in _REFERENCE.finditer(text))


def has_reference(text: str) -> bool:
    """Return True if `text` has a reference."""
    return any(matched[1] in ("env", *_CHANGING) for matched in _REFERENCE.finditer(text))


def show_key_path(key_path: KeyPath) -> str:
    """Return ``("source", "tables", 0)`` as ``source.tables[0]``."""
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


_files_sent: dict[str, str] = {}


def private_text(path: str) -> str:
    """Return the content of a private file: the one that was sent to this process, or else the file on this machine.

    Raises `OSError` if neither exists.
    """
    return _files_sent[path] if path in _files_sent else Path(path).read_text(encoding="utf-8")


def all_private(folder: Path) -> dict[str, str]:
    """Return the content of each private file of `folder`, by its path.

    Other processes may write into the folder meanwhile.
    """
    if not folder.is_dir():
        return {}
    found: dict[str, str] = {}
    for path in folder.iterdir():
        # A file is renamed to its final name at the end, so it may be gone under its first name.
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path)] = path.read_text(encoding="utf-8")
    return found


def take_private(texts: Mapping[str, str]) -> None:
    """Keep the content of files of another machine, so that `private_text` finds it."""
    _files_sent.update(texts)
