"""Chunks of a batch: the work buffer with its tokens, and the results of the scan for each message."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raycdc.formats.api import MessageBatch
from raycdc.formats.decoding.message_keys import MessageKeys, bytes_of
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops.envelope_loops import INFO_COLUMNS, MESSAGE_ROWS, ScannedMessages
from raycdc.formats.loops.tape_loops import (
    ABSENT,
    ARRAY,
    AT,
    BEGIN,
    DEPTH_MAX,
    END,
    KIND,
    NEXT,
    SPARE,
    STATE_SIZE,
    STOP,
    STRING,
    TOKENS,
    Tape,
)

#: The number of bytes after the end of the work buffer that loops may read.
_PAD = 64
#: The maximum number of digits of a time, so that it fits in 64 bits.
_TIME_DIGITS = 18
#: Positions in the work buffer are 32-bit numbers, and the buffer is up to three times as large as its messages.
MESSAGE_BYTES_MAX = 512 << 20


class Workspace:
    """Buffers that are reused for one chunk after the other."""

    def __init__(self) -> None:
        self._size = 0
        self.tape = self._make(0)

    def room(self, size: int) -> Tape:
        """Return an empty tape for messages of `size` bytes in total."""
        if size > self._size:
            self.tape = self._make(max(size, 2 * self._size))
        self.tape.state[TOKENS] = 0
        self.tape.state[SPARE] = size
        return self.tape

    def _make(self, size: int) -> Tape:
        self._size = size
        # Every value takes at least two bytes, including its comma. A container that is not closed may take one.
        tokens = size + size // 2 + DEPTH_MAX + 16
        return Tape(
            data=np.zeros(3 * size + _PAD, np.uint8),
            tok=np.empty((tokens, 4), np.int32),
            state=np.zeros(STATE_SIZE, np.int64),
        )


class Chunk:
    """The messages ``first … first + count`` of a batch in the work buffer. Valid until the next chunk is cut."""

    def __init__(self, tape: Tape, first: int, bounds: npt.NDArray[np.int64], slots: int) -> None:
        count = len(bounds) - 1
        self.tape = tape
        self.first = first
        self.count = count
        info = np.zeros((count, INFO_COLUMNS), np.int64)
        info[:, BEGIN], info[:, STOP] = bounds[:-1], bounds[1:]
        info[:, envelope.KEY_SHAPE] = ABSENT
        self.messages = ScannedMessages(info=info, found=np.full((count, slots), -1, np.int32))
        self.seqs = np.zeros(count, np.int64)

    def column(self, column: int) -> npt.NDArray[np.int64]:
        """Return a column of `ScannedMessages.info`."""
        return self.messages.info[:, column]

    def message(self, number: int) -> bytes:
        """Return the bytes of a message."""
        return self.tape.data[self.messages.info[number, BEGIN] : self.messages.info[number, STOP]].tobytes()

    def token(self, token: int) -> bytes:
        """Return a token's text, unchanged (strings without their quotes)."""
        if token < 0:
            return b""
        return self.tape.data[self.tape.tok[token, AT] : self.tape.tok[token, END]].tobytes()

    def keys_from(self, message: int, key: int) -> list[bytes]:
        """Return the keys of a row of the message, from the token `key` on."""
        keys: list[bytes] = []
        last = self._row_end(message, key)
        while key < last:
            keys.append(self.token(key))
            key = int(self.tape.tok[key + 1, NEXT])
        return keys

    def _row_end(self, message: int, key: int) -> int:
        """Return the token after the row whose token is `key`."""
        for slot in range(envelope.AFTER, envelope.BEFORE + 1):
            row = int(self.messages.found[message, slot])
            if row < 0 or not row < key < self.tape.tok[row, NEXT]:
                continue
            if self.tape.tok[row, KIND] == ARRAY:
                row += 1
                while self.tape.tok[row, NEXT] <= key:
                    row = int(self.tape.tok[row, NEXT])
            return int(self.tape.tok[row, NEXT])
        raise AssertionError("the loops name keys of rows alone")

    def text(self, message: int, slot: int) -> bytes:
        """Return the text of an envelope field; empty if the message lacks the field, or if its value is no text."""
        token = int(self.messages.found[message, slot])
        return self.token(token) if token >= 0 and self.tape.tok[token, KIND] == STRING else b""

    def time(self, message: int) -> int:
        """Return the envelope's time of a message, in the unit of its format; 0 if it is missing or no number."""
        digits = self.token(int(self.messages.found[message, envelope.TIME]))
        return int(digits) if digits.isdigit() and len(digits) <= _TIME_DIGITS else 0

    def number(self, first: int) -> int:
        """Reserve numbers for the rows of each message, from `first` on, according to its maximum number of rows.

        Returns the next free number.
        """
        rows = self.column(MESSAGE_ROWS)
        np.cumsum(rows, out=self.seqs)
        last = int(self.seqs[-1])
        self.seqs += first - rows
        return first + last


def cut(
    batch: MessageBatch, workspace: Workspace, chunk_bytes: int, slots: int, keys: MessageKeys | None = None
) -> Iterator[Chunk]:
    """Yield the batch in chunks of about `chunk_bytes`. A longer message is a chunk of its own."""
    if not len(batch):
        return
    offsets, data, empty = bytes_of(batch.values)
    sizes = keys.sizes() if keys is not None else np.zeros(len(offsets), np.int64)
    ends = offsets + sizes
    first = 0
    while first < len(batch):
        stop = int(np.searchsorted(ends, ends[first] + chunk_bytes, side="right")) - 1
        stop = min(max(stop, first + 1), len(batch))
        start, end = int(offsets[first]), int(offsets[stop])
        tape = workspace.room(int(ends[stop] - ends[first]))
        tape.data[: end - start] = data[start:end]
        chunk = Chunk(tape, first, offsets[first : stop + 1] - start, slots)
        if empty is not None:
            chunk.column(STOP)[empty[first:stop]] = chunk.column(BEGIN)[empty[first:stop]]
        if keys is not None:
            keys.copy_to(first, chunk.messages.info, tape.data, end - start)
        yield chunk
        first = stop
