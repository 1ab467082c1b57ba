"""The keys of a batch's messages: the choice of those that the scan needs, and the digest of a key for a decoder's
state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.formats.api import MessageBatch
from raycdc.formats.loops.envelope_loops import SAME_KEY
from raycdc.formats.loops.key_loops import copy_keys, may_be_tombstones


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """The keys of a batch's messages that the scan needs.

    `wanted` is 1 for messages whose key is copied into the work buffer. `same` is 1 for messages that have the same key
    as the message before.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.uint8]
    same: npt.NDArray[np.int64]

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the wanted keys before each message, and of all."""
        sizes = np.diff(self.offsets) * self.wanted
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def copy_to(self, first: int, info: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], at: int) -> None:
        """Copy the wanted keys of the messages from `first` on into the work buffer `data`, from `at` on.

        Their positions are noted in `info`, which has a row for each message (`envelope_loops.ScannedMessages`).
        """
        stop = first + len(info)
        copy_keys(self.data, self.offsets[first : stop + 1], self.wanted[first:stop], info, data, at)
        info[:, SAME_KEY] = self.same[first:stop]


def message_keys(batch: MessageBatch, *, every: bool, last: str | None) -> MessageKeys | None:
    """Return the keys of the batch's tombstones; of all messages if `every` is True; None if the scan needs no key.

    If the message before the batch was a delete, `last` is the digest (`key_digest`) of its key.
    """
    if batch.keys is None or not len(batch):
        return None
    value_offsets, values, empty = bytes_of(batch.values)
    tombstones = np.zeros(len(batch), np.uint8)
    may_be_tombstones(values, value_offsets, tombstones)
    if empty is not None:
        tombstones[empty] = 1
    if not every and not tombstones.any():
        return None
    offsets, data, _ = bytes_of(batch.keys)
    same = np.zeros(len(batch), np.int64)
    at = np.flatnonzero(tombstones)
    if len(at) and at[0] == 0:
        same[0] = last is not None and key_digest(batch.keys[0].as_py()) == last
        at = at[1:]
    if len(at):
        equal = pc.equal(batch.keys.take(pa.array(at)), batch.keys.take(pa.array(at - 1)))
        same[at] = equal.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return MessageKeys(data, offsets, np.ones_like(tombstones) if every else tombstones, same)


def key_digest(key: bytes | None) -> str | None:
    """Return the digest of a message's key, by which the decoder's state remembers the last delete."""
    return None if key is None else hashlib.sha256(key).hexdigest()[:32]


def bytes_of(
    values: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """Return the offsets and bytes of a binary array, and which of its values are null (None: no value is)."""
    if not pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_binary())
    buffers = values.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(buffers[2] if buffers[2] is not None else b"", np.uint8)
    return offsets, data, values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
