"""The sweep that tests of masks rely on sees a value however it is written."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from tests.leaks import leaks

WORD, NUMBER = "planted-värde-word", 1_938_475_611


def ipc() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"word": [WORD], "number": [NUMBER]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "content",
    [
        f"before {WORD} after".encode(),
        json.dumps({"a": [WORD]}).encode(),
        WORD.encode("utf-16"),
        f"x'{WORD.encode().hex()}'".encode(),
        b'{"prepared": "' + base64.b64encode(zlib.compress(msgpack.packb({"a": ["b", WORD.encode()]}))) + b'"}',
        b'{"prepared": "2:' + base64.b64encode(zlib.compress(msgpack.packb([ipc()]))) + b'"}',
        b"a" + base64.b64encode(b"ab" + WORD.encode() + b"cd"),
    ],
)
def test_a_planted_text_is_seen(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert leaks([tmp_path], [WORD])
    assert not leaks([tmp_path], ["planted-other-word"])


@pytest.mark.parametrize("content", [str(NUMBER).encode(), ipc(), msgpack.packb([NUMBER]), struct.pack("<d", NUMBER)])
def test_a_planted_number_is_seen(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert leaks([tmp_path], [NUMBER])
    assert not leaks([tmp_path], [NUMBER + 1])
