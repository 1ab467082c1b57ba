"""What ``raycdc verify`` prints for people, of each verdict."""

from __future__ import annotations

import pytest

from raycdc.cli import verify
from raycdc.cli.verify import Asked
from raycdc.errors import ConfigError
from raycdc.verify.results import Comparison, Counts, ShownKeys, Side, TableResult, Verdict
from raycdc.verify.table import Reading
from raycdc.verify.verifier import Watched

SIDE = Side(1200, "0123456789abcdef0123456789abcdef")


def told(result: TableResult, capsys: pytest.CaptureFixture[str]) -> str:
    verify._print(result, as_json=False)
    return capsys.readouterr().out


def compared(counts: Counts, keys: ShownKeys | None = None) -> Comparison:
    return Comparison(SIDE, SIDE, ranges=4, rounds=6, counts=counts, seconds=0.5, keys=keys)


READ = "(1,200 rows in 4 ranges, 2,400 rows/s, checksum 0123456789abcdef)"


@pytest.mark.parametrize(
    ("result", "verdict", "line"),
    [
        (TableResult("a.b", "a.b", compared(Counts())), Verdict.EQUAL, f"a.b: equal {READ}\n"),
        (
            TableResult("a.b", "lake.b", compared(Counts(missing=2, changed=1), ShownKeys(missing=("7", "8\n")))),
            Verdict.DIFFERENT,
            (
                f"a.b in lake.b: DIFFERENT: 2 missing in the target, 1 with other values {READ}\n"
                "    missing: 7\n    missing: 8\\n\n"
            ),
        ),
        (
            TableResult("a.b", "a.b", compared(Counts(kept_changing=3))),
            Verdict.UNSETTLED,
            f"a.b: 3 rows kept changing in 6 rounds, so nothing is known of them {READ}\n",
        ),
        (
            TableResult("a.b", "a.b", compared(Counts(behind=1)), notes=("one thing",)),
            Verdict.UNSETTLED,
            (
                "a.b: 1 rows differ and changed at the source since the pipeline's last commit: it is behind "
                f"{READ}\n    one thing.\n"
            ),
        ),
        (
            TableResult.refused("a.b", "a.b", why="it is paused"),
            Verdict.NOT_COMPARED,
            "a.b: not compared: it is paused.\n",
        ),
        (
            TableResult.refused("a.b", "a.b", why="its target a.b is parked: It is full. Make room.", notes=("x", "x")),
            Verdict.NOT_COMPARED,
            "a.b: not compared: its target a.b is parked: It is full. Make room.\n    x.\n",
        ),
    ],
)
def test_a_line_says_what_is_known(
    result: TableResult, verdict: Verdict, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (result.verdict, told(result, capsys)) == (verdict, line)


@pytest.mark.parametrize(("text", "share"), [("", 1.0), ("5%", 0.05), ("100", 1.0), ("0.5 %", 0.005)])
def test_a_sample_is_a_percentage(text: str, share: float) -> None:
    assert Asked(sample=text).share == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "101%", "half", "-5%"])
def test_another_sample_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no percentage"):
        _ = Asked(sample=text).share


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
