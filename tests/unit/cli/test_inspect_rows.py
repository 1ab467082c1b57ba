"""``raycdc inspect binlog`` prints every row that it decodes: on files of every kind of server, whole and damaged."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from raycdc.cli.inspect.inspect_binlog import inspect_binlog
from raycdc.errors import ConfigError, ExitCode
from tests.unit.connectors.mysql.binlog_bytes import LogWriter

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


def test_phases_of_an_alter_that_have_no_effect_are_no_ddl(tmp_path: Path) -> None:
    log = LogWriter().format(b"10.11.6-MariaDB-log")
    # START, COMMIT and ROLLBACK ALTER of MariaDB's GTID events, with the number of the START; then one without phases.
    for sequence, flags in enumerate([b"\2", b"\4" + bytes(8), b"\2", b"\x08" + bytes(8), b""], start=1):
        log.mariadb_gtid(sequence, standalone=True, extra=flags).query(b"ALTER TABLE t ADD c INT")
    path = tmp_path / "mariadb.000001"
    path.write_bytes(b"\xfebin" + log.take())
    code, out, _ = inspected(path)
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert (code, [type_ for type_ in types if type_ != "gtid"]) == (
        ExitCode.DONE,
        ["alter_start", "ddl", "alter_start", "alter_rollback", "ddl"],
    )


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
