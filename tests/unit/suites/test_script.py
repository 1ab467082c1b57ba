"""Scripts of MariaDB's regression suite are rewritten so that their tables stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.suites.compare import played
from tests.suites.following import Batch, Verdict
from tests.suites.known import Fault, unexpected
from tests.suites.playing import Played
from tests.suites.script import Rewriter, Script, load


def rewritten(text: str) -> list[str]:
    return [line for line in Rewriter("s1_x").rewrite(text).split("\n") if line.strip()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # What was dropped stays, and its name means a new table.
        (
            "create table t1 (a int);\ndrop table t1;\ncreate table t1 (b int);\ninsert into t1 values (1);",
            ["create table t1 (a int);", "DO 0;", "create table t1_g2 (b int);", "insert into t1_g2 values (1);"],
        ),
        # Nothing has been named that could be dropped.
        ("drop table if exists t1, t2;\ncreate table t1 (a int);", ["DO 0;", "create table t1 (a int);"]),
        # A drop that must fail is played.
        (
            "create table t1 (a int);\n--error 1051\ndrop table t2;",
            ["create table t1 (a int);", "--error 1051", "drop table t2;"],
        ),
        # A temporary table is dropped, and the one that it hid is there again.
        (
            "create table t1 (a int);\ncreate temporary table t1 (a int);\ndrop table t1;\ninsert into t1 values (1);",
            [
                "create table t1 (a int);",
                "create temporary table t1 (a int);",
                "DROP TEMPORARY TABLE IF EXISTS t1;",
                "insert into t1 values (1);",
            ],
        ),
        # A trigger of a table that stays makes room for the next one of its name.
        (
            "create table t1 (a int);\ncreate trigger r before insert on t1 for each row set @a = 1;",
            [
                "create table t1 (a int);",
                "DROP TRIGGER IF EXISTS r;",
                "create trigger r before insert on t1 for each row set @a = 1;",
            ],
        ),
        # A delimiter, and semicolons in text, end no statement.
        (
            "delimiter |;\ncreate procedure p() begin call q(';'); drop table t1; end|\ndelimiter ;|\ndrop table t1;",
            [
                "delimiter |;",
                "create procedure p() begin call q(';'); drop table t1; end|",
                "delimiter ;|",
                "DO 0;",
            ],
        ),
        ("use test;\nselect * from test.t1;", ["use s1_x;", "select * from s1_x.t1;"]),
        # Other programs are not run, nor files of text taken for statements.
        (
            "--exec rm x\nperl;\nprint 'drop table t1;';\nEOF\n--write_file f\ndrop table t1;\nEOF\nselect 1;",
            ["--write_file f", "drop table t1;", "EOF", "select 1;"],
        ),
    ],
)
def test_tables_stay(text: str, wanted: list[str]) -> None:
    assert rewritten(text) == wanted


def test_what_is_included_is_rewritten_and_may_be_a_reason_to_leave_the_script_out(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/drops.inc").write_text("insert into t1 values (1);\ndrop table t1;\n")
    (tmp_path / "include/restarts.inc").write_text("--source include/restart_mysqld.inc\n")
    (tmp_path / "a.test").write_text("create table t1 (a int);\n--source include/drops.inc\ncreate table t1 (a int);\n")
    (tmp_path / "b.test").write_text("# restart_mysqld is not here\nselect 1;\n--source include/restarts.inc\n")
    first = load(tmp_path / "a.test", "main/a", "s1_a", home=tmp_path)
    assert (first.left_out, "create table t1_g2 (a int);" in first.text) == ("", True)
    assert load(tmp_path / "b.test", "main/b", "s2_b", home=tmp_path).left_out == "it stops or restarts the server"


def _batch(*verdicts: Verdict) -> Batch:
    return Batch(played=[Played(Script("main/a", "s1_a", ""), "")], verdicts=list(verdicts))


def test_known_faults_are_no_news_and_those_that_are_gone_are() -> None:
    fault = Fault("main/a", "t1", "because")
    differs = Verdict("main/a", "s1_a.t1", problems=("rows differ",))
    assert unexpected(_batch(differs), [fault]) == []
    assert unexpected(_batch(differs), []) == ["main/a: s1_a.t1: rows differ"]
    assert unexpected(_batch(Verdict("main/a", "s1_a.t1")), [fault]) == ["main/a: t1 is no fault any more: because"]


def test_a_reason_must_be_a_named_one_and_a_run_goes_on() -> None:
    named = Verdict(
        "main/a", "s1_a.t1", parked="LOG: this statement cannot be followed: alter_primary_key is not followed."
    )
    other = Verdict("main/a", "s1_a.t2", parked="Table s1_a.t2 in the log does not fit its known schema")
    assert unexpected(_batch(named), []) == []
    assert unexpected(_batch(other), []) == [f"main/a: s1_a.t2: parked without a true reason: {other.parked}"]
    batch = _batch(named)
    batch.ended.append("exit 1")
    assert unexpected(batch, []) == ["a run ended: exit 1"]


def test_statements_in_the_log_are_a_named_reason_where_the_script_wants_them() -> None:
    parked = Verdict("main/a", "s1_a.t1", parked="a change was logged as a statement, not as rows")
    assert len(unexpected(_batch(parked), [])) == 1
    script = Script("main/a", "s1_a", "SET binlog_format = 'MIXED';")
    assert unexpected(Batch(played=[Played(script, "")], verdicts=[parked]), []) == []


def test_a_column_that_came_back_is_empty_in_rows_from_before() -> None:
    lines: list[dict[str, Any]] = [
        {"_op": "+I", "a": 1, "b": "x"},
        {"_op": "-U", "a": None, "b": "x"},
        {"_op": "+U", "a": 2, "b": "x"},
        {"_op": "-U", "a": None, "b": "y"},
    ]
    held, problems = played(lines, came_back=["a"])
    assert held is not None
    assert held.rows == ({"a": 2, "b": "x"},)
    assert len(problems) == 1
    assert len(played(lines)[1]) == len(played(lines, came_back=["b"])[1]) == 2
