"""The log file of a run (``[logging]``): its events, and messages of libraries, one line each.

The log never delays or ends a run: a file that cannot be written is reported once, on standard error. Messages of
libraries are written from WARNING on (from INFO with ``level = "debug"``), but never DEBUG messages, because they quote
statements and requests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from raycdc.config.sections.observability import LoggingOptions, LogLevel
from raycdc.core.terminal_text import printable_text
from raycdc.observe.events import Failed, RunEvent, event_to_json, level_of
from raycdc.observe.events.lines import line_of, log_line, now_text

_ORDER = [*LogLevel]
_LIBRARIES = {LogLevel.DEBUG: logging.INFO, LogLevel.ERROR: logging.ERROR}


class LogFile:
    """Writes the log file. The run's threads call `listen`, one at a time, within `writing`."""

    def __init__(self, options: LoggingOptions, pipeline: str) -> None:
        self._options = options
        self._pipeline = pipeline
        self._least = _ORDER.index(options.level)
        self._file = _Appended(Path(options.file)) if options.file else None
        #: The kinds of errors that were reported; each is reported once.
        self._failed: set[str] = set()

    def __repr__(self) -> str:
        return f"LogFile({self._options.file!r})"

    def listen(self, event: RunEvent) -> None:
        """Write an event of the run."""
        self._add(event)

    def failed(self, error: BaseException) -> None:
        """Write that the run ends with `error`; the caller of the run gets the error itself."""
        if isinstance(error, Exception):
            self._add(Failed.of(error))

    def _add(self, event: RunEvent) -> None:
        if isinstance(event, Failed):
            if event.error in self._failed:
                return
            self._failed.add(event.error)
        if self._file is not None and self._wants(level := level_of(event)):
            if self._options.format == "json":
                self._file.add(line_of(event, self._pipeline))
            else:
                self._file.add(_event_text(event, level, self._pipeline))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Also write the messages that libraries log within the block."""
        if self._file is None:
            yield
            return
        handler = _Records(self._file, self._pipeline, as_json=self._options.format == "json")
        handler.setLevel(_LIBRARIES.get(self._options.level, logging.WARNING))
        root = logging.getLogger()
        before, others = root.level, [(each, each.level) for each in root.handlers]
        for other, level in others:
            # Messages below the usual level are for the log file only, and must not reach the other handlers.
            other.setLevel(max(level, before))
        root.addHandler(handler)
        root.setLevel(min(handler.level, before))
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(before)
            for other, level in others:
                other.setLevel(level)
            self._file.close()

    def _wants(self, level: LogLevel) -> bool:
        return _ORDER.index(level) >= self._least


def _event_text(event: RunEvent, level: LogLevel, pipeline: str) -> str:
    """Return a line for people: time, level, pipeline and event, then the event's keys in their usual order."""
    keys = event_to_json(event)
    name = str(keys.pop("event"))
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in keys.items()}
    return _text(level, pipeline, name, texts)


def _text(level: LogLevel, pipeline: str, name: str, texts: Mapping[str, str]) -> str:
    rest = [f"{key}={_quoted(text)}" for key, text in texts.items()]
    return printable_text(" ".join([f"{now_text()} {level.upper()} {pipeline} {name}", *rest])).replace("\n", " ")


def _quoted(text: str) -> str:
    return text if text and not set(text) & set(' "=\n\t') else json.dumps(text, ensure_ascii=False)


class _Records(logging.Handler):
    """Writes log records of libraries, and of raycdc's own loggers, as lines."""

    def __init__(self, file: _Appended, pipeline: str, *, as_json: bool) -> None:
        super().__init__()
        self._file = file
        self._pipeline = pipeline
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's own mistake in its arguments
            return
        level = LogLevel.ERROR if record.levelno >= logging.ERROR else LogLevel.WARNING
        level = LogLevel.INFO if record.levelno < logging.WARNING else level
        if self._as_json:
            self._file.add(log_line(level, self._pipeline, record.name, text))
        else:
            self._file.add(_text(level, self._pipeline, "log", {"logger": record.name, "text": text}))


class _Appended:
    """Appends lines to a file. Thread-safe; if the file is replaced, the next line goes to the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The lock is reentrant, because a library may log from `__del__`, at any moment of the same thread.
        self._lock = threading.RLock()
        self._descriptor: int | None = None
        self._reported = False

    def add(self, line: str) -> None:
        with self._lock:
            try:
                # One write, so lines of several processes do not mix.
                os.write(self._opened(), f"{line}\n".encode())
            except OSError as cause:
                self._notify(cause)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is not None:
            here = os.fstat(self._descriptor)
            try:
                there = self._path.stat()
                same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
            except FileNotFoundError:
                same = False
            if not same:
                self._close()
        if self._descriptor is None:
            self._descriptor = _open_file(self._path)
        return self._descriptor

    def _notify(self, cause: OSError) -> None:
        if not self._reported:
            self._reported = True
            text = f"logging.file: {self._path} cannot be written to ({cause.strerror}); the run goes on without it."
            # Standard error may be closed as well.
            with contextlib.suppress(OSError, ValueError):
                print(printable_text(text), file=sys.stderr)  # noqa: T201 - the log is what does not work


def _open_file(path: Path) -> int:
    """Return a descriptor that appends to a regular file; pipes and devices are refused.

    To open a pipe, a reader is needed, and a write to a pipe that is not read would block.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return descriptor
