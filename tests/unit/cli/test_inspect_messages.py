"""``raycdc inspect messages``: lines in, changelog lines out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.inspect import inspect_messages as command
from raycdc.errors import ConfigError, ExitCode
from raycdc.formats.api import Format
from tests.unit.formats.format_messages import make

INSERT = '{"database":"d","table":"t","type":"insert","ts":7,"xid":9,"commit":true,"data":{"id":1,"n":null,"x":1.5}}'
UPDATE = '{"database":"d","table":"t","type":"update","ts":8,"data":{"id":1,"n":"ü","x":1.5},"old":{"n":null}}'


def _load(name: str, *, key_path: str, **options: Any) -> Format:
    assert key_path == "--format"
    return make(name, **options)


@pytest.fixture(autouse=True)
def _formats_without_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_format", _load)


def run(path: Path, text: str, name: str = "maxwell-json", columns: str | None = None) -> tuple[int, list[Any], str]:
    path.write_text(text)
    out, errors = io.StringIO(), io.StringIO()
    code = command.print_messages(path, name, columns, out=out, errors=errors)
    return int(code), [json.loads(line) for line in out.getvalue().splitlines()], errors.getvalue()


def test_each_row_is_a_line_and_an_empty_line_a_tombstone(tmp_path: Path) -> None:
    code, lines, errors = run(tmp_path / "m.jsonl", f"{INSERT}\n\n{UPDATE}\n")
    assert (code, errors) == (ExitCode.DONE, "")
    assert [(line["op"], line["row"]) for line in lines] == [
        ("+I", {"id": 1, "n": None, "x": 1.5}),
        ("-U", {"id": 1, "n": None, "x": 1.5}),
        ("+U", {"id": 1, "n": "ü", "x": 1.5}),
    ]
    assert lines[0]["metadata"] == {
        "database": "d", "table": "t", "type": "insert", "ts": 7, "xid": 9, "commit": True, "time_ms": 7000,
    }  # fmt: skip


def test_values_print_as_mysql_prints_them(tmp_path: Path) -> None:
    data = {"d": "1.5", "t": "2020-01-02 03:04:05", "b": "AQI=", "j": {"a": [1]}, "u": 18446744073709551615, "f": 2}
    message = json.dumps({"database": "d", "table": "t", "type": "insert", "ts": 7, "data": data})
    columns = "d DECIMAL(10,2), t DATETIME(3), b BLOB, j JSON, u BIGINT UNSIGNED, f DOUBLE"
    _, [line], _ = run(tmp_path / "m.jsonl", message, columns=columns)
    assert line["row"] == {
        "d": "1.50", "t": "2020-01-02 03:04:05.000", "b": {"$binary": "AQI="}, "j": {"a": [1]},
        "u": 18446744073709551615, "f": 2,
    }  # fmt: skip


def test_damage_ends_after_the_rows_before_it_with_file_and_line(tmp_path: Path) -> None:
    code, lines, errors = run(tmp_path / "m.jsonl", f"{INSERT}\n{UPDATE[:40]}\n{INSERT}\n")
    assert (code, len(lines)) == (ExitCode.DATA, 1)
    assert errors.startswith("m.jsonl:2: corrupt message: it ends in the middle at byte 40\n")
    assert errors.count("\n") == 1


def test_messages_that_name_no_table_have_none_and_a_table_that_goes_is_a_row(tmp_path: Path) -> None:
    _, [line], _ = run(tmp_path / "shop.orders", '{"id": 1}', name="json")
    assert line == {"op": "+I", "row": {"id": 1}, "metadata": {"database": "", "table": ""}}
    event = {"op": "c", "before": None, "after": {"id": 1}, "ts_ms": 7}
    _, [line], _ = run(tmp_path / "m.jsonl", json.dumps(event), name="debezium-json")
    assert (line["metadata"]["database"], line["metadata"]["table"]) == ("", "")
    drop = {"database": "d", "table": "t", "type": "table-drop", "ts": 7, "sql": "DROP TABLE t"}
    _, lines, _ = run(tmp_path / "m.jsonl", f"{INSERT}\n{json.dumps(drop)}\n")
    assert lines[1] == {"op": "T", "row": None, "metadata": {"database": "d", "table": "t"}}


@pytest.mark.parametrize(
    ("name", "good", "bad", "error"),
    [
        (
            "canal-json",
            {"type": "INSERT", "database": "d", "table": "t", "data": [{"id": "1"}]},
            {"type": "X"},
            "unknown type",
        ),
        ("debezium-json", {"op": "c", "before": None, "after": {"id": 1}}, {"op": "?"}, "unknown op"),
        ("maxwell-json", json.loads(INSERT), {"type": "?", "database": "d", "table": "t"}, "unknown type"),
        (
            "ogg-json",
            {"table": "D.T", "op_type": "I", "after": {"id": 1}},
            {"table": "D.T", "op_type": "?"},
            "unknown op_type",
        ),
        ("json", {"id": 1}, [1], "corrupt message"),
    ],
)
def test_every_format_gives_the_rows_before_a_bad_message_and_one_line_that_names_it(
    tmp_path: Path, name: str, good: Any, bad: Any, error: str
) -> None:
    text = f"{json.dumps(good)}\n{json.dumps(bad)}\n{json.dumps(good)}\n"
    code, lines, errors = run(tmp_path / "m.jsonl", text, name=name)
    assert (code, [(line["op"], sorted(line)) for line in lines]) == (4, [("+I", ["metadata", "op", "row"])])
    assert errors.startswith(f"m.jsonl:2: {error}")
    assert errors.count("\n") == 1


def test_a_file_without_line_breaks_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LINE_BYTES_MAX", 1 << 20)
    code, lines, errors = run(tmp_path / "m.jsonl", f"{INSERT}\n{' ' * (2 << 20)}")
    assert (code, len(lines), errors) == (4, 1, "m.jsonl:2: corrupt message: it is longer than 1 MiB\n")


def test_rows_of_several_tables_come_in_the_order_of_messages(tmp_path: Path) -> None:
    messages = [
        json.dumps({"database": "d", "table": "ab"[i % 2], "type": "insert", "data": {"i": i}}) for i in range(9)
    ]
    _, lines, _ = run(tmp_path / "m.jsonl", "\n".join(messages))
    assert [line["row"]["i"] for line in lines] == list(range(9))


def test_unreadable_files_and_malformed_columns_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone cannot be read"):
        command.print_messages(tmp_path / "gone", "maxwell-json", None)


def test_nothing_heavy_is_imported() -> None:
    imports = "import sys, raycdc.cli.inspect.inspect_messages, raycdc.formats.decoding.decoder"
    code = f"{imports}; print([m for m in ('ray', 'pyspark', 'numba', 'pandas') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
