"""A recovery is told where something had ended in the middle, once there are processes that read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raycdc.delivery.outcomes import Recovery
from raycdc.observe.events import Recovered, TookOver
from raycdc.observe.watch.run_reports import Recoveries
from raycdc.source.protocol.job_status import JobStatus
from raycdc.state.drivers.holder import Holder, RunEnd

HOLDER = Holder("db1", "m", 7)
RECOVERY = Recovery(4, replayed=(4,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ""),
        (HOLDER, "killed"),
        (replace(HOLDER, ended=True), ""),
        (replace(HOLDER, ended=True, end=RunEnd(1, 0)), ""),
        (replace(HOLDER, ended=True, end=RunEnd(1, 130)), ""),
        (replace(HOLDER, ended=True, end=RunEnd(1, 5, "SinkError", "…")), "error"),
        (TookOver("process 7 on db1 ended", 3), "take_over"),
    ],
)
def test_the_end_of_the_run_before_says_whether_there_is_one(before: Holder | TookOver | None, after: str) -> None:
    told: list[Recovered] = []
    recoveries = Recoveries(before, told.append)
    recoveries.began(RECOVERY)
    recoveries.heard(None)
    assert told == []
    for _ in range(2):
        recoveries.heard(JobStatus(1, 4, 4))
    assert [(each.after, each.epoch, each.replayed) for each in told] == ([(after, 4, (4,))] if after else [])


def test_a_run_that_goes_on_after_a_loss_says_so() -> None:
    told: list[Recovered] = []
    recoveries = Recoveries(None, told.append)
    recoveries.went_on("node", "The node n1 is gone.", RECOVERY)
    recoveries.heard(JobStatus(2, 4, 4))
    assert [str(each) for each in told] == ["The node n1 is gone; going on behind epoch 4 (replayed epoch 4)"]
