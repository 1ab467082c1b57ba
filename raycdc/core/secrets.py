"""References in any text of the configuration, by which secrets stand outside of it.

| reference | is |
|---|---|
| ``${env:NAME}``, ``${env:NAME:-default}`` | a variable of the environment |
| ``${file:PATH}`` | the text of a file, relative to the working directory |
| ``${command:WORDS}`` | what a command prints; no shell reads the words |
| ``${plugin:NAME ARGUMENT}`` | what a function answers to ``ARGUMENT``: an entry point of `PLUGINS`, or \
``module:function`` |

``$${`` stands for a literal ``${``. The text behind a reference is never shown in a message. All but the environment
may say something else later: a text that was made of such a reference is a `Renewed`, and `newest` reads it again,
which every client does before it logs in. So a password is changed without a restart.
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
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

#: Tables and lists inside of each other; no option has more than a few.
DEPTH_MAX = 32
#: The largest file of a secret or certificate.
FILE_BYTES_MAX = 1 << 20

#: How long a command or function may take, and for how long its answer is used again: epochs log in more often.
ANSWER_TIMEOUT_S = 30.0
KEPT_S = 5.0
#: Nobody can end a function that hangs: so long it is waited for by whoever asks the same, and then called again.
HANGS_S = 300.0
#: Entry points of packages: functions of one text that answer with another.
PLUGINS = "raycdc.secrets"

_REFERENCE = re.compile(r"\$\$\{|\$\{(\w*):([^}]*)\}")

#: Those whose text may change while a process runs.
_CHANGING = ("file", "command", "plugin")

KeyPath = tuple[str | int, ...]


class Renewed(str):
    """A text as the references of `template` gave it when the configuration was read. Picklable.

    Where it goes it is a text like any other; `newest` knows how it is read again.
    """

    template: str
    #: Whether another process has sent it, which had logged in with it before: the driver, to its readers and tasks.
    sent: bool

    def __new__(cls, text: str, template: str = "", *, sent: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.template, made.sent = template, sent
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # As this process read it last: it may be another one by now.
        return _sent, (_LAST.get(self.template, (str(self), frozenset()))[0], self.template)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _sent(text: str, template: str) -> Renewed:
    return Renewed(text, template, sent=True)


def newest(text: str) -> str:
    """`text` as its references give it now; as they gave it last in this process where they cannot be read (on another
    machine, or in this moment), or where one is empty that was not (a file that is being written). Any other text is
    itself. May block: see `ANSWER_TIMEOUT_S`. Thread-safe.
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
    """Let the `Renewed` among `texts` be sent to other processes as their references give them now."""
    for text in texts:
        if isinstance(text, Renewed):
            newest(text)


def as_private(text: str) -> str:
    """`text` as it is now, and how it is read again, for the private file of a task (`from_private`)."""
    return json.dumps([newest(text), text.template if isinstance(text, Renewed) else ""])


def from_private(content: str) -> str:
    """The text of `as_private`."""
    text, template = json.loads(content)
    return _sent(text, template) if template else str(text)


#: What each template was in this process, and which of its references were empty.
_LAST: dict[str, tuple[str, frozenset[str]]] = {}


class _Answers:
    """Answers of commands and functions, each kept for `KEPT_S`: several connections are opened at once. Whoever asks
    while the same is asked waits for that answer, or for its error, and nobody for another one's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By kind and argument: when it was asked, and the answer that may be on its way.
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
            # The next one who comes asks again; an interrupt is for this thread alone.
            with self._lock:
                self._kept.pop(key, None)
            answer.set_exception(cause if isinstance(cause, ValueError) else ValueError("was interrupted"))
            raise


_ANSWERS = _Answers()


class _Calls:
    """Calls of functions, each in a thread of its own that no end of a process waits for, and one at a time of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By reference: since when it is under way.
        self._under_way: dict[str, tuple[float, Future[object]]] = {}

    def made(self, words: str, call: Callable[[], object]) -> Future[object]:
        """The call that was made, which has returned or raised. ValueError where it takes longer than
        `ANSWER_TIMEOUT_S`.
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
            # Whoever asks from now on has it called anew.
            if self._under_way.get(words, (0.0, None))[1] is answer:
                del self._under_way[words]
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(result)


_CALLS = _Calls()


class ReferenceResolver:
    """Resolves the references of one configuration; afterwards holds the `problems`, the `locations` that had any, and
    the `empty` references of those that may change.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []
        self.locations: set[KeyPath] = set()
        self.empty: set[str] = set()

    def resolve(self, value: Any, key_path: KeyPath = ()) -> Any:
        """`value` with all references in its texts replaced; ones that cannot be become problems."""
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
        """`text`, unless it can be no path, name, address or password of anything."""
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
            # Its text is ours: that of a command or function may have the secret in it.
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
    """What a command prints, without its last line end. ValueError with what is wrong; its output is in no message."""
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
    """The answer of a function. ValueError with what is wrong, by the name of the error alone."""
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
    if (failed := call.exception()) is not None:  # its text may hold the secret
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
    """Whether `text` holds a reference whose text may be another one later."""
    return any(matched[1] in _CHANGING for matched in _REFERENCE.finditer(text))


def has_reference(text: str) -> bool:
    """Whether `text` holds a reference."""
    return any(matched[1] in ("env", *_CHANGING) for matched in _REFERENCE.finditer(text))


def show_key_path(key_path: KeyPath) -> str:
    """``("source", "tables", 0)`` as ``source.tables[0]``."""
    text = ""
    for part in key_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
