"""A change stream that is opened again when it breaks, so that its reader gets one sequence of answers.

| the stream | is opened again |
|---|---|
| lost its cursor | at its position; repeated failures without an answer are reported to the pipeline |
| was invalidated, because a collection or a database was dropped | after that event |
| has an event that is too large for any answer | lean (without documents) for one answer |
| was lean, and was read further | with documents, because the large event may have passed |

Events that came in parts (``$changeStreamSplitLargeEvent``) are joined here: an incomplete event is not passed on, and
the token after its parts is not used as a position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from raycdc.connectors.mongodb.stream.events import joined
from raycdc.connectors.mongodb.stream.raw_stream import EventTooLargeError, RawBatch, StreamEndedError
from raycdc.connectors.mongodb.stream.resume_token import StreamPosition
from raycdc.errors import DataError, SourceError, SourceUnavailableError


class Fragments:
    """The fragments of an incomplete event. One thread."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def forget(self) -> None:
        """Drop the fragments, because they will come again."""
        self._parts = []

    def whole(self, data: bytes) -> bytes:
        """Return `data` with fragmented events joined. Fragments of an incomplete event are kept for the next call."""
        if not self._parts and b"splitEvent\0" not in data:
            return data
        whole: list[bytes] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            number, of = _number(data[at : at + size])
            if of == 0:
                whole.append(data[at : at + size])
            else:
                if number != len(self._parts) + 1:
                    raise DataError(f"Part {number} of {of} of an event follows part {len(self._parts)}.")
                self._parts.append(data[at : at + size])
                if number == of:
                    whole.append(joined(self._parts))
                    self._parts = []
            at += max(size, 5)
        return b"".join(whole)


def _number(event: bytes) -> tuple[int, int]:
    """Return the number of an event's fragment, and the number of all its fragments; (0, 0) if it is not split."""
    split = RawBSONDocument(event).get("splitEvent")
    return (0, 0) if split is None else (int(split["fragment"]), int(split["of"]))


_log = logging.getLogger(__name__)

#: The number of times a stream is opened again without an answer before this is reported to the pipeline.
_REOPENED_MAX = 3


class Stream(Protocol):
    """The interface of `raycdc.connectors.mongodb.stream.raw_stream.RawStream`."""

    def next(self) -> RawBatch: ...

    def close(self) -> None: ...


class OpenStream(Protocol):
    """A function that opens a stream after a position.

    A `lean` stream has no documents, and few events in an answer.
    """

    def __call__(self, position: StreamPosition, *, lean: bool) -> Stream: ...


class ReopenedStream:
    """A stream that is opened again when it breaks; see the module's docstring. One thread."""

    def __init__(self, open_stream: OpenStream, start: StreamPosition, *, close: Callable[[], None]) -> None:
        """Open the stream at `start`, which blocks. `close` is called last."""
        self.start = start
        self._open_stream = open_stream
        self._close = close
        self._fragments = Fragments()
        self._reopened = 0
        #: The position from which on the stream is lean.
        self._lean_from: StreamPosition | None = None
        self._stream: Stream | None = open_stream(start, lean=False)

    def next(self, read_to: StreamPosition) -> RawBatch | None:
        """Return the next answer, with complete events.

        None if there is none, and the next call opens the stream again.

        `read_to` is the position after all earlier answers. The answer has no token if reading cannot continue after
        it.
        """
        if self._lean_from is not None and self._lean_from != read_to:
            # If the next event is too large as well, the next lean stream begins one event later.
            self._lean_from = None
            self._end()
        try:
            if self._stream is None:
                self._stream = self._open_stream(read_to, lean=self._lean_from is not None)
            answer = self._stream.next()
        except StreamEndedError as ended:
            self._end()
            self._reopened += 1
            if self._reopened > _REOPENED_MAX:
                raise SourceUnavailableError(str(ended)) from ended
            return None
        except EventTooLargeError as refused:
            self._end()
            if self._lean_from is not None:
                raise SourceError(str(refused)) from refused
            self._lean_from = read_to
            _log.warning("%s The next documents are read by their keys.", refused)
            return None
        self._reopened = 0
        data = self._fragments.whole(answer.data)
        whole = replace(answer, data=data, token=None if self._fragments else answer.token)
        if answer.ended:
            self._end()
        return whole

    @contextmanager
    def ahead(self, position: StreamPosition) -> Iterator[Stream]:
        """Yield a second, lean stream from `position` on. It is not opened again: if it breaks, reading ends."""
        stream = self._open_stream(position, lean=True)
        with closing(stream), suppress(StreamEndedError):
            yield stream

    def close(self) -> None:
        self._end()
        self._close()

    def _end(self) -> None:
        stream, self._stream = self._stream, None
        self._fragments.forget()
        if stream is not None:
            # The cursor or the server may be gone already.
            with suppress(PyMongoError):
                stream.close()
