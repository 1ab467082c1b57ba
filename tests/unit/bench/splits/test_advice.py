"""The strategy that is recommended, and the page that shows why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from raycdc.bench.splits.advice import advice_for, advice_for_all
from raycdc.bench.splits.figures import ChunkTiming, MeasuredRun, Planning, Report, StrategyResult, TableBenchResult
from raycdc.bench.splits.page import write_page
from raycdc.source.trials import ServerCosts


def measured(
    name: str, rows: Sequence[int], *, planning_s: float = 0.1, rows_read: int = 0, cut_off: int = -1
) -> StrategyResult:
    """A strategy with chunks of these rows, each row a millisecond; one may have been cut off."""
    chunks, at = [], 0.0
    for number, count in enumerate(rows):
        chunks.append(ChunkTiming(number, 0, at, count / 1000, count, count * 80, number == cut_off))
        at += count / 1000
    planning = Planning("id", len(rows), 0.05, planning_s, ServerCosts(10, rows_read, None))
    return StrategyResult(name, f'strategy = "{name}"', planning, [MeasuredRun(1, at, chunks, at, 100 << 20)])


EVEN = [1000] * 20


def test_the_strategy_whose_chunks_are_shared_out_best_is_recommended() -> None:
    advice = advice_for([measured("even", [*EVEN[:10], 10_000]), measured("sampled", EVEN, rows_read=500)], 4)
    assert advice is not None
    assert advice.strategy == "sampled"
    assert "readers wait" in advice.reason


def test_of_equals_the_one_that_asks_least_of_the_server_is_recommended() -> None:
    results = [measured("uneven", EVEN, rows_read=20_000), measured("auto", EVEN, rows_read=100)]
    advice = advice_for(results, 2)
    assert advice is not None
    assert advice.strategy == "auto"
    assert "uneven: as fast, but the server reads 20,000 rows to cut the table" in advice.reason


@pytest.mark.parametrize("cut_off", [-1, 4])
def test_a_large_chunk_is_recommended_only_where_each_strategy_has_one(cut_off: int) -> None:
    # One reader alone would be faster by it.
    large = measured("even", [*[10] * 40, 5000] if cut_off < 0 else [100] * 5, cut_off=cut_off)
    assert advice_for([large, measured("uneven", EVEN)], 1).strategy == "uneven"  # type: ignore[union-attr]
    only = advice_for([large], 1)
    assert only is not None
    assert "source.snapshot.key" in only.reason


def test_nothing_is_recommended_where_nothing_was_measured() -> None:
    refused = StrategyResult("even", "", refused="its key is text")
    assert advice_for([refused], 2) is None
    assert advice_for_all([TableBenchResult("shop.t", 0, [refused])], 2) is None


def test_all_tables_have_the_strategy_that_fits_each() -> None:
    text = [StrategyResult("even", "", refused="its key is text"), measured("auto", EVEN)]
    number = [measured("even", EVEN), measured("auto", [1100] * 20)]
    tables = [
        TableBenchResult(f"shop.{n}", 0, results, advice_for(results, 2)) for n, results in enumerate([text, number])
    ]
    advice = advice_for_all(tables, 2)
    assert advice is not None
    assert advice.strategy == "auto"


def test_names_of_tables_are_text_on_the_page(tmp_path: Path) -> None:
    name = "shop.</script><script>alert(1)</script>"
    results = [measured(name, EVEN), measured("auto", [5, 7])]
    report = Report(name, 0, 2, (1, 2), [TableBenchResult(name, 9, results, advice_for(results, 2))], None)
    page = tmp_path / "page.html"
    write_page(report, page)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "1,000" in text
