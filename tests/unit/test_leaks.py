"""The sweep that tests of masks rely on sees a value however it is written."""

from __future__ import annotations

import ast
import base64
import json
import re
import struct
import zlib
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from raycdc.state.documents import KINDS, kind_of
from tests.leaks import leaks, nothing_shows
from tests.support.jobs import Job

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


# What is swept --------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
#: Kinds of files that no run with masks has, and why.
NEVER_MASKED = {"data source": "the data source refuses a configuration with masks"}
#: Files in other folders, and where.
ELSEWHERE = {
    "owner.json": "ray.spool: whose segments are there",
    "state.json": "an object store: the documents that a folder has as files",
}
#: Names in the code of files and folders in a state.
_PLACED = re.compile(r'(?:store\.path|\bstate|self\.path) / "(\w+)"|"(\w+\.json)"|\n(?:KNOWN|_NOTES) = "(\w+)"')


def test_every_kind_of_file_of_a_state_that_may_show_rows_is_swept() -> None:
    swept = set()
    for path in (ROOT / "tests" / "e2e").glob("test_masked_*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            for keyword in (one for one in call.keywords if one.arg == "kinds"):
                swept |= {str(one.value) for one in ast.walk(keyword.value) if isinstance(one, ast.Constant)}
    assert {kind for kind, one in KINDS.items() if one.rows} - swept == set(NEVER_MASKED)
    assert swept <= set(KINDS)


def test_every_file_that_the_code_puts_into_a_state_is_of_a_kind() -> None:
    parts = ("driver", "state", "delivery", "spark", "runtime", "segments", "datasource")
    places = [path for part in parts for path in (ROOT / "raycdc" / part).rglob("*.py")]
    places.append(ROOT / "raycdc" / "pipeline.py")
    found = {"".join(names) for path in places for names in _PLACED.findall(path.read_text())}
    assert found >= {"spool", "dead_letters", "known", "looked_up", "retyped.json", "names.json"}
    assert [
        name for name in found - set(ELSEWHERE) if not any(map(kind_of, (name, f"{name}/x", f"{name}/x.jsonl")))
    ] == []


def sweep_of(folder: Path, name: str, content: bytes) -> None:
    """A sweep of a state that has one file of this name."""
    job = Job(folder, None, "shop", ("p",))  # type: ignore[arg-type]
    path = job.state / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    nothing_shows(job, [WORD])


def test_a_new_kind_of_file_is_noticed(tmp_path: Path) -> None:
    sweep_of(tmp_path / "known", "epochs/0000000001.json", b"{}")
    sweep_of(tmp_path / "unfinished", f"epochs/.0000000001.json.{'0' * 32}.tmp", b"{}")
    with pytest.raises(AssertionError, match="of no kind in"):
        sweep_of(tmp_path / "new", "samples/0000000001.json", b"{}")
    with pytest.raises(AssertionError, match="utf-8"):
        sweep_of(tmp_path / "planted", "epochs/0000000001.json", WORD.encode())
