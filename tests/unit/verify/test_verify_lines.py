"""What ``raycdc verify`` prints for people, of each verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raycdc.cli import verify
from raycdc.cli.verify import VerifyOptions
from raycdc.errors import ConfigError
from raycdc.verify.differing_columns import DifferingColumn
from raycdc.verify.results import ComparisonReport, ComparisonVerdict, KeyCounts, ShownKeys, SideCounts, TableResult
from raycdc.verify.table import Reading
from raycdc.verify.verifier import Watched

SIDE = SideCounts(1200, "0123456789abcdef0123456789abcdef")


def told(result: TableResult, capsys: pytest.CaptureFixture[str]) -> str:
    verify._print(result, as_json=False)
    return capsys.readouterr().out


def compared(counts: KeyCounts, keys: ShownKeys | None = None) -> ComparisonReport:
    return ComparisonReport(SIDE, SIDE, ranges=4, rounds=6, counts=counts, seconds=0.5, keys=keys)


READ = "(1,200 rows in 4 ranges, 2,400 rows/s, checksum 0123456789abcdef)"


@pytest.mark.parametrize(
    ("result", "verdict", "line"),
    [
        (TableResult("a.b", "a.b", compared(KeyCounts())), ComparisonVerdict.EQUAL, f"a.b: equal {READ}\n"),
        (
            TableResult("a.b", "lake.b", compared(KeyCounts(missing=2, changed=1), ShownKeys(missing=("7", "8\n")))),
            ComparisonVerdict.DIFFERENT,
            (
                f"a.b in lake.b: DIFFERENT: 2 missing in the target, 1 with other values {READ}\n"
                "    missing: 7\n    missing: 8\\n\n"
            ),
        ),
        (
            TableResult(
                "a.b",
                "a.b",
                replace(compared(KeyCounts(changed=3)), columns=tuple(DifferingColumn(f"c{n}") for n in range(10))),
            ),
            ComparisonVerdict.DIFFERENT,
            f"a.b: DIFFERENT: 3 with other values in c0, c1, c2, c3, c4, c5, c6, c7 and 2 more {READ}\n",
        ),
        (
            TableResult("a.b", "a.b", compared(KeyCounts(kept_changing=3))),
            ComparisonVerdict.UNSETTLED,
            f"a.b: 3 rows kept changing in 6 rounds, so nothing is known of them {READ}\n",
        ),
        (
            TableResult("a.b", "a.b", compared(KeyCounts(behind=1)), notes=("one thing",)),
            ComparisonVerdict.UNSETTLED,
            (
                "a.b: 1 rows differ and changed at the source since the pipeline's last commit: it is behind "
                f"{READ}\n    one thing.\n"
            ),
        ),
        (
            TableResult.refused("a.b", "a.b", why="it is paused"),
            ComparisonVerdict.NOT_COMPARED,
            "a.b: not compared: it is paused.\n",
        ),
        (
            TableResult.refused("a.b", "a.b", why="its target a.b is parked: It is full. Make room.", notes=("x", "x")),
            ComparisonVerdict.NOT_COMPARED,
            "a.b: not compared: its target a.b is parked: It is full. Make room.\n    x.\n",
        ),
        (
            TableResult("a.b", "a.b", reason="it is removed: a user asked for it.", is_left_out=True),
            ComparisonVerdict.LEFT_OUT,
            "a.b: left out: it is removed: a user asked for it.\n",
        ),
    ],
)
def test_a_line_says_what_is_known(
    result: TableResult, verdict: ComparisonVerdict, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (result.verdict, told(result, capsys)) == (verdict, line)


@pytest.mark.parametrize(("text", "share"), [("", 1.0), ("5%", 0.05), ("100", 1.0), ("0.5 %", 0.005)])
def test_a_sample_is_a_percentage(text: str, share: float) -> None:
    assert VerifyOptions(sample=text).fraction == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "101%", "half", "-5%"])
def test_another_sample_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no percentage"):
        _ = VerifyOptions(sample=text).fraction


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        (Reading(), "a.b: 0 of about 4,000,000 rows of the source, 0 of the target"),
        (
            Reading(source_rows=1_000_000),
            (
                "a.b: 1,000,000 of about 4,000,000 rows of the source, 0 of the target, 5,000 rows/s, 25 %, "
                "about 10 min left"
            ),
        ),
        (
            Reading(source_rows=3_999_999),
            (
                "a.b: 3,999,999 of about 4,000,000 rows of the source, 0 of the target, 20,000 rows/s, 99 %, "
                "about 1.0 s left"
            ),
        ),
        (
            Reading(source_rows=3, target_rows=9, round=2, keys=1),
            "a.b: round 2, 1 key that changed meanwhile, 3 rows of the source, 9 of the target",
        ),
        (Reading(source_rows=3, doing="reads the log"), "a.b: reads the log"),
    ],
)
def test_progress_says_how_far_it_is(reading: Reading, line: str) -> None:
    assert verify.progress_line(Watched("a.b", reading, 4_000_000), 200.0) == line
