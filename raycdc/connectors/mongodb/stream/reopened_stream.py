"""A change stream that is opened anew where it breaks, so that its reader sees one stream of answers.

| the stream | is opened anew |
|---|---|
| lost its cursor | where it was read to; the pipeline hears of it when that happens again and again without an answer |
| was invalidated, because a collection or a database went | behind that |
| has an event that is too large for any answer | lean, which is without documents, for one answer |
| was lean, and was read further | with documents, because whatever was too large may be over |

Events that came in parts are put together here: parts whose rest is to come are none yet, and the token behind them is
no place to go on from.

Events that came in parts, as ``$changeStreamSplitLargeEvent`` makes them of those too large for one answer.
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
    """Parts of an event whose rest is to come. One thread."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def forget(self) -> None:
        """They come again."""
        self._parts = []

    def whole(self, data: bytes) -> bytes:
        """`data` with events that came in parts put together; parts whose rest is to come wait."""
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
    """Which part of how many an event is; (0, 0) for a whole one."""
    split = RawBSONDocument(event).get("splitEvent")
    return (0, 0) if split is None else (int(split["fragment"]), int(split["of"]))


_log = logging.getLogger(__name__)

#: Times a stream is opened anew without an answer in between, before the pipeline hears of it.
_REOPENED_MAX = 3


class Stream(Protocol):
    """`raycdc.connectors.mongodb.stream.raw_stream.RawStream`."""

    def next(self) -> RawBatch: ...

    def close(self) -> None: ...


class OpenStream(Protocol):
    """Opens a stream behind a place; a `lean` one has no documents in its events, and few events in an answer."""

    def __call__(self, position: StreamPosition, *, lean: bool) -> Stream: ...


class ReopenedStream:
    """See the module's docstring. One thread."""

    def __init__(self, open_stream: OpenStream, start: StreamPosition, *, close: Callable[[], None]) -> None:
        """Opens the stream at `start`, which blocks. `close` is called last."""
        self.start = start
        self._open_stream = open_stream
        self._close = close
        self._fragments = Fragments()
        self._reopened = 0
        #: The place from which the stream is lean.
        self._lean_from: StreamPosition | None = None
        self._stream: Stream | None = open_stream(start, lean=False)

    def next(self, read_to: StreamPosition) -> RawBatch | None:
        """The next answer, with whole events; None where there is none, and the next call opens the stream anew.

        `read_to` is the place behind all earlier answers. The answer has no token where that is no place to go on from.
        """
        if self._lean_from is not None and self._lean_from != read_to:
            # Where the next event is too large as well, the next lean answer is one further.
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
        """A second stream, which is lean, from `position` on. It is not opened anew: where it breaks, reading ends."""
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
            # Its cursor may be gone already, and the server with it.
            with suppress(PyMongoError):
                stream.close()
