"""A map whose versions share what did not change, and a status of many tables that is made of such maps."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from raycdc.observe.events import Committed, Lags, RunProgress, TableFigures
from raycdc.observe.status import RunProcess, StatusKeeper
from raycdc.observe.status.persistent_map import PersistentMap

KEYS = st.integers(0, 600)
CHANGES = st.lists(st.tuples(st.dictionaries(KEYS, st.integers()), st.sets(KEYS)), max_size=8)

TABLES = 20_000
#: A copy of the references to all tables takes more than half a million bytes.
COPIED_MAX = 100_000


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_every_version_is_the_dict_that_it_stands_for(
    first: dict[int, int], changes: list[tuple[dict[int, int], set[int]]]
) -> None:
    versions, dicts = [PersistentMap(first)], [dict(first)]
    for changed, dropped in changes:
        versions.append(versions[-1].with_changes(changed, dropped))
        dicts.append({key: value for key, value in {**dicts[-1], **changed}.items() if key not in dropped})
    for version, expected in zip(versions, dicts, strict=True):
        assert version == expected
        assert (len(version), bool(version)) == (len(expected), bool(expected))
        assert dict(version.items()) == expected
        assert sorted(version) == sorted(expected)
        assert sorted(version.values()) == sorted(expected.values())
        assert [version.get(key) for key in range(600)] == [expected.get(key) for key in range(600)]


def test_an_event_of_a_few_tables_copies_no_references_to_all_of_them() -> None:
    keeper = StatusKeeper(RunProcess.here())
    keeper.listen(RunProgress(tuple(TableFigures(f"shop.t{n:06}", "stream") for n in range(TABLES)), Lags(), ()))
    keeper.listen(Committed(1, {f"shop.t{n:06}": 1 for n in range(TABLES)}, TABLES, staging_s=0.1, commit_s=0.1))
    before = keeper.status
    few = tuple(TableFigures(f"shop.t{n:06}", "parked", rows=5) for n in (7, 70, 700))
    tracemalloc.start()
    try:
        keeper.listen(RunProgress(few, Lags(), ()))
        keeper.listen(Committed(2, {"shop.t000007": 5}, 5, staging_s=0.1, commit_s=0.1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < COPIED_MAX
    now = keeper.status
    assert (now.tables.phases, before.tables.phases) == ({"stream": TABLES - 3, "parked": 3}, {"stream": TABLES})
    assert [status.tables.known["shop.t000007"].figures.rows for status in (before, now)] == [0, 5]
    assert [status.commits.by_table["shop.t000007"].epoch for status in (before, now)] == [1, 2]


def test_a_table_that_comes_has_its_place_among_the_names() -> None:
    keeper = StatusKeeper(RunProcess.here())
    for names in (("shop.b", "shop.d"), ("shop.c",), ("shop.a", "shop.d")):
        keeper.listen(RunProgress(tuple(TableFigures(name, "stream") for name in names), Lags(), ()))
    assert keeper.status.tables.names == ("shop.a", "shop.b", "shop.c", "shop.d")
    assert [table.figures.table for table in keeper.status.tables.in_order()] == list(keeper.status.tables.names)
