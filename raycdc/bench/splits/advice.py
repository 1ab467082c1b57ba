"""Recommends a strategy for a table from the measurements, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.bench.splits.figures import Advice, StrategyResult, TableBenchResult, readers_text

#: Strategies whose times differ by less than this factor count as equal: measurements vary by about as much.
TIE_FACTOR = 1.1
#: A chunk larger than the mean by this factor costs memory, and keeps one reader busy while others wait.
UNEVEN = 4.0
#: If chunks take less time than this, there are too many: the log's reader needs some milliseconds to open each chunk.
SHORT_CHUNK_S = 0.05
#: The minimum number of chunks per reader, with which no reader waits for long at the end.
CHUNKS_EACH = 4


def advice_for(results: Sequence[StrategyResult], readers: int) -> Advice | None:
    """Return the advice for `readers` readers; None if nothing was measured."""
    measured = [result for result in results if result.runs]
    if not measured:
        return None
    # A reader has a whole chunk in memory, and the other readers wait for its end. So a strategy with a large chunk is
    # recommended only if every strategy has one.
    even = [result for result in measured if not _uneven(result)] or measured
    best_s = min(result.whole_s(readers) for result in even)
    ties = [result for result in even if result.whole_s(readers) <= TIE_FACTOR * best_s]
    # If several strategies are equally fast, the one that costs the server least is chosen, and then the default.
    chosen = min(ties, key=lambda result: (_planning_rows(result), result.name != "auto"))
    return Advice(chosen.name, chosen.settings, " ".join(_reasons(chosen, measured, readers)))


def advice_for_all(tables: Sequence[TableBenchResult], readers: int) -> Advice | None:
    """Return one strategy for all tables of a source: the fastest one among those that are suitable for each table."""
    measured = [table for table in tables if table.advice is not None]
    if not measured:
        return None
    whole_s: dict[str, float] = {}
    for name in dict.fromkeys(result.name for table in measured for result in table.strategies):
        of_tables = [r.whole_s(readers) for t in measured for r in t.strategies if r.name == name and r.runs]
        if len(of_tables) == len(measured):
            whole_s[name] = sum(of_tables)
    if not whole_s:
        return None
    best_s = min(whole_s.values())
    wished = [table.advice.strategy for table in measured if table.advice is not None]
    ties = [name for name, seconds in whole_s.items() if seconds <= TIE_FACTOR * best_s]
    chosen = max(ties, key=lambda name: (wished.count(name), name == "auto"))
    settings = next(r.settings for t in measured for r in t.strategies if r.name == chosen)
    if len(measured) == 1:
        return measured[0].advice
    others = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(whole_s.items(), key=_second))
    reason = f"All {len(measured)} tables, one after the other with {readers_text(readers)}: {others}."
    return Advice(chosen, settings, reason)


def _uneven(result: StrategyResult) -> bool:
    return result.cut_off or result.rows().unevenness > UNEVEN


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def _planning_rows(result: StrategyResult) -> int:
    assert result.planning is not None
    return result.planning.costs.rows_read or 0


def _reasons(chosen: StrategyResult, measured: Sequence[StrategyResult], readers: int) -> list[str]:
    chosen_s = chosen.whole_s(readers)
    reasons = [f"With {readers_text(readers)} the table takes {chosen_s:.1f} s by {chosen.name}."]
    others = sorted((r for r in measured if r is not chosen), key=lambda r: r.whole_s(readers))
    reasons += [f"{other.name}: {_against(other, chosen, readers)}." for other in others]
    planning, rows = chosen.planning, chosen.rows()
    assert planning is not None
    if _uneven(chosen):
        least = "at least " if chosen.cut_off else ""
        reasons.append(
            f"Its largest chunk still has {least}{rows.most:,.0f} rows, {rows.unevenness:.0f} times the mean: "
            "a key with more values would cut better (source.snapshot.key)."
        )
    times = sorted(chosen.times_s())
    middle_s = times[len(times) // 2]
    if planning.chunks < CHUNKS_EACH * readers and chosen_s > 1:
        reasons.append(f"It is {_chunks(planning.chunks)}: smaller ones would share the work out better.")
    elif planning.chunks > CHUNKS_EACH * readers and middle_s < SHORT_CHUNK_S:
        reasons.append(
            f"Half of its {_chunks(planning.chunks)} take less than {middle_s * 1000:.0f} ms: larger ones do."
        )
    return reasons


def _against(other: StrategyResult, chosen: StrategyResult, readers: int) -> str:
    """Return why `other` was not chosen."""
    assert other.planning is not None
    seconds, ratio = other.whole_s(readers), other.whole_s(readers) / max(chosen.whole_s(readers), 1e-9)
    least = "at least " if other.cut_off else ""
    if _uneven(other) and not _uneven(chosen) and ratio <= TIE_FACTOR:
        rows = other.rows()
        return f"{seconds:.1f} s, but its largest chunk has {rows.most:,.0f} rows, {rows.unevenness:.0f} times the mean"
    if ratio <= TIE_FACTOR:
        read, ours = other.planning.costs.rows_read, _planning_rows(chosen)
        if read is not None and read > 2 * max(ours, 1000):
            return f"as fast, but the server reads {read:,} rows to cut the table"
        return "as fast"
    why = ""
    if other.schedule(readers).idle > 0.2:
        why = f"; readers wait {other.schedule(readers).idle:.0%} of the time for its largest chunk"
    elif other.planning.seconds > 0.5 * seconds:
        why = f"; cutting alone takes {other.planning.seconds:.1f} s"
    return f"{least}{seconds:.1f} s, {ratio:.1f} times as long{why}"


def _chunks(count: int) -> str:
    return "1 chunk" if count == 1 else f"{count} chunks"
