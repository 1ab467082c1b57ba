"""``raycdc inspect binlog`` on files that are not whole: what comes before the damage, a line about it, exit code 4."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from tests.support.forked_commands import completed

WHOLE = Path(__file__).parents[1] / "fuzz" / "corpus" / "mysql80-crc32.000001"
_INCIDENT = 26
_LENGTH = slice(9, 13)


def events_of(data: bytes) -> list[int]:
    """Where each event begins."""
    found, at = [], 4
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at:][_LENGTH], "little")
    return found


def cut_inside_the_last_event(data: bytes, at: list[int]) -> bytes:
    return data[: at[-1] + 7]


def flip_a_byte_in_the_middle(data: bytes, at: list[int]) -> bytes:
    place = at[len(at) // 2] + 20
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def make_an_event_endless(data: bytes, at: list[int]) -> bytes:
    place = at[len(at) // 2] + 9
    return data[:place] + struct.pack("<I", 0x7FFFFFFF) + data[place + 4 :]


def end_in_an_incident(data: bytes, at: list[int]) -> bytes:
    """As a server writes that lost changes of its log."""
    body = struct.pack("<HB", 1, 4) + b"lost"
    length = 19 + len(body) + 4
    event = struct.pack("<IBIIIH", 1, _INCIDENT, 1, length, at[-1] + length, 0) + body
    return data[: at[-1]] + event + zlib.crc32(event).to_bytes(4, "little")


def say_another_version(data: bytes, at: list[int]) -> bytes:
    event = bytearray(data[at[0] : at[1]])
    event[19:21] = struct.pack("<H", 3)
    event[-4:] = zlib.crc32(bytes(event[:-4])).to_bytes(4, "little")
    return data[: at[0]] + bytes(event) + data[at[1] :]


def be_something_else(data: bytes, at: list[int]) -> bytes:
    return b"-- a dump\n" * 100


@pytest.mark.parametrize(
    ("damage", "reason", "comes_after_rows"),
    [
        (cut_inside_the_last_event, "the file ends inside an event", True),
        (flip_a_byte_in_the_middle, "the checksum of an event does not match", True),
        (make_an_event_endless, "the file ends inside an event", True),
        (end_in_an_incident, "INCIDENT event (type 26) cannot be followed", True),
        (say_another_version, "of a binlog format other than version 4", False),
        (be_something_else, "this is not a binlog file, or it is encrypted", False),
    ],
)
def test_damage_is_named_behind_what_could_be_read(
    damage: Callable[[bytes, list[int]], bytes], reason: str, *, comes_after_rows: bool, tmp_path: Path
) -> None:
    data = WHOLE.read_bytes()
    path = tmp_path / "binlog.000007"
    path.write_bytes(damage(data, events_of(data)))
    done = completed(["inspect", "binlog", str(path)], environment=os.environ, folder=tmp_path)
    assert done.returncode == ExitCode.DATA, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("binlog.000007:")
    assert reason in said
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("op" in entry for entry in printed) == comes_after_rows
    place = int(said.split(":")[1])
    assert all(entry["pos"] <= place for entry in printed)
