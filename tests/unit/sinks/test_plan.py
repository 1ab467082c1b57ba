"""Which rows of an epoch are appended, and which are merged."""

from __future__ import annotations

from dataclasses import replace

from raycdc.sinks.task_inputs import Input, split
from tests.protocol.pair import segment

CHUNK = replace(segment("chunk"), kind="snapshot", seq_base=1)
AGAIN = replace(segment("again"), kind="backfill", seq_base=2)
LOG = [replace(segment(f"log{n}"), kind="log", partition=n, seq_base=9) for n in (0, 1)]


def test_snapshot_rows_are_appended_and_each_partition_of_the_log_is_merged_by_itself() -> None:
    appended, merged = split([CHUNK, *LOG], upsert=True, may_append=True)
    assert (appended, merged) == ([CHUNK], [[Input(LOG[0])], [Input(LOG[1])]])


def test_rows_of_a_backfill_are_merged_before_those_of_the_log_by_one_task() -> None:
    appended, merged = split([*LOG, AGAIN], upsert=True, may_append=True)
    assert (appended, merged) == ([], [[Input(AGAIN), Input(LOG[0]), Input(LOG[1])]])
