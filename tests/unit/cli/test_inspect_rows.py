"""``raycdc inspect binlog`` prints every row that it decodes: on files of every kind of server, whole and damaged."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from raycdc.cli.inspect_binlog import inspect_binlog
from raycdc.errors import ConfigError, ExitCode

CORPUS = sorted((Path(__file__).parents[2] / "fuzz" / "corpus").iterdir())
#: The same statements made every file of the corpus.
ROW_CHANGES = 20
_DAMAGES = 25


def inspected(path: Path) -> tuple[ExitCode, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    return inspect_binlog([path], None, out, errors), out.getvalue(), errors.getvalue()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_all_row_changes_are_printed(path: Path) -> None:
    code, out, errors = inspected(path)
    assert (code, errors, out.count('"op": ')) == (ExitCode.DONE, "", ROW_CHANGES)


@pytest.mark.parametrize("path", [p for p in CORPUS if "-none" in p.name], ids=lambda path: path.name)
def test_what_is_decoded_before_damage_is_printed(path: Path, tmp_path: Path) -> None:
    """Without checksums damage is met anywhere, also inside compressed transactions."""
    whole = path.read_bytes()
    source = random.Random(path.name)
    damaged = tmp_path / path.name
    for _ in range(_DAMAGES):
        data = bytearray(whole)
        data[source.randrange(200, len(data))] ^= 1 << source.randrange(8)
        damaged.write_bytes(data)
        try:
            code, _, errors = inspected(damaged)
        except ConfigError:
            continue
        assert errors.count("\n") == (code == ExitCode.DATA)
