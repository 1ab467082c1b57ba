"""When the patience with a target is over: whether it alone is blocked, or the whole sink is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.core.stopping import StopRequest
from raycdc.core.threads import THREADS
from raycdc.delivery.record_keeper import CommitRecordWriter
from raycdc.delivery.targets.parked_targets import ParkedTargets, SinkOutagePolicy
from raycdc.delivery.targets.target_retry import SinkRetry, TargetRetry
from raycdc.errors import (
    ParkReason,
    SinkError,
    SinkLockedError,
    SinkUnavailableError,
    SparkLostError,
    TargetBlockedError,
    TargetModifiedError,
)
from raycdc.model import TableId
from raycdc.sinks.api import Sink
from raycdc.state.recovery import CommitVector

ORDERS, ITEMS, PARTS = (TableId("shop", name) for name in ("orders", "items", "parts"))
LOCKED = "It is locked by session 7 of ann."


@dataclass
class Server:
    """A sink of which one thing or another cannot be done."""

    durable: bool = True
    locked: set[TableId] = field(default_factory=set)
    #: Of which nobody hears what they hold.
    silent: set[TableId] = field(default_factory=set)
    asked: list[TableId] = field(default_factory=list)

    def committed(self, target: TableId) -> CommitVector | None:
        self.asked.append(target)
        if target in self.silent:
            raise SinkUnavailableError(f"{target}: 500")
        return None

    def blocked(self, target: TableId, *, wholly: bool = False) -> str:
        return LOCKED if target in self.locked else ""


@dataclass
class Records:
    vectors: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {str(name): (1, 1) for name in (ORDERS, ITEMS, PARTS)}
    )


class Patient:
    """The patience with the targets of `server`, which is over at once."""

    def __init__(self, server: Server, records: Records | None = None) -> None:
        self.stopping = StopRequest()
        self.tried = 0
        waiting = SinkRetry(SinkOutagePolicy(policy=RetryPolicy(retry_s=0.0)), self.stopping, THREADS)
        parked, keeper = NobodyIsParked(), cast("CommitRecordWriter", records or Records())
        self.patience = TargetRetry(cast("Sink", server), waiting, cast("ParkedTargets", parked), keeper, self.stopping)

    def write(self, *targets: TableId, error: Exception | None = None) -> None:
        def act() -> None:
            self.tried += 1
            if error is not None:
                raise error

        self.patience(targets, act)


class NobodyIsParked:
    def owes_nothing(self, target: TableId) -> bool:
        return False


AWAY, LOCK = SinkUnavailableError("It answers 500."), SinkLockedError("canceling statement due to lock timeout")


def test_a_target_that_somebody_has_locked_is_blocked_alone_and_its_error_says_who() -> None:
    with pytest.raises(TargetBlockedError) as raised:
        Patient(Server(locked={ORDERS})).write(ORDERS, error=LOCK)
    assert raised.value.reason is ParkReason.BLOCKED
    assert str(raised.value) == (
        "shop.orders has taken nothing for 0 minutes, and other targets answer: canceling statement due to lock "
        f"timeout. {LOCKED}"
    )


def test_a_target_that_alone_says_nothing_is_blocked_alone() -> None:
    with pytest.raises(TargetBlockedError, match=r"other targets answer: It answers 500\.$"):
        Patient(Server(silent={ORDERS})).write(ORDERS, error=AWAY)


@pytest.mark.parametrize(
    ("server", "error"),
    [
        pytest.param(Server(silent={ORDERS, ITEMS, PARTS}), AWAY, id="nobody answers"),
        pytest.param(Server(locked={ORDERS, ITEMS, PARTS}), LOCK, id="all are locked"),
        pytest.param(Server(), AWAY, id="it says what it holds"),
        pytest.param(Server(), LOCK, id="nobody knows of a lock"),
        pytest.param(Server(locked={ORDERS}), AWAY, id="it does not wait for the lock"),
        pytest.param(Server(silent={ORDERS}, durable=False), AWAY, id="nobody remembers"),
        pytest.param(Server(silent={ORDERS}), SparkLostError("Spark is gone."), id="Spark is gone"),
        pytest.param(Server(silent={ORDERS}), SinkError("no"), id="another error"),
    ],
)
def test_whatever_is_not_certainly_one_targets_ends_the_run_as_before(server: Server, error: Exception) -> None:
    with pytest.raises(SinkError) as raised:
        Patient(server).write(ORDERS, error=error)
    assert type(raised.value) is SinkError


def test_a_refusal_is_passed_on_as_it_is() -> None:
    with pytest.raises(TargetModifiedError, match="somebody"):
        Patient(Server(silent={ORDERS})).write(ORDERS, error=TargetModifiedError("somebody was there"))


def test_a_stop_that_ends_the_waiting_blames_no_target() -> None:
    patient = Patient(Server(silent={ORDERS}))
    patient.stopping.set()
    with pytest.raises(SinkError) as raised:
        patient.write(ORDERS, error=AWAY)
    assert type(raised.value) is SinkError


def test_one_target_proves_nothing_about_itself() -> None:
    with pytest.raises(SinkError) as raised:
        Patient(Server(silent={ORDERS}), Records({str(ORDERS): (1, 1)})).write(ORDERS, error=AWAY)
    assert type(raised.value) is SinkError


def test_targets_that_are_in_trouble_themselves_prove_nothing() -> None:
    patient = Patient(Server(silent={ORDERS}))
    for other in (ITEMS, PARTS):
        with pytest.raises(SinkError):
            patient.write(other, error=AWAY)
    with pytest.raises(SinkError) as raised:
        patient.write(ORDERS, error=AWAY)
    assert type(raised.value) is SinkError
    patient.write(PARTS)
    with pytest.raises(TargetBlockedError):
        patient.write(ORDERS, error=AWAY)


def test_in_the_first_epoch_the_targets_that_took_theirs_answer_for_the_sink() -> None:
    patient = Patient(Server(silent={ORDERS}), Records({}))
    patient.write(ITEMS)
    with pytest.raises(TargetBlockedError):
        patient.write(ORDERS, error=AWAY)


def test_an_answer_between_which_the_sink_comes_back_proves_nothing() -> None:
    """The other target must answer before and behind the one in question."""

    class Flapping(Server):
        def committed(self, target: TableId) -> CommitVector | None:
            if len(self.asked) >= 2:
                self.silent = {ORDERS, ITEMS, PARTS}
            return super().committed(target)

    with pytest.raises(SinkError) as raised:
        Patient(Flapping(silent={ORDERS})).write(ORDERS, error=AWAY)
    assert type(raised.value) is SinkError


def test_of_several_that_are_staged_at_once_the_blocked_one_is_not_waited_for_again() -> None:
    patient = Patient(Server(silent={ITEMS}))
    with pytest.raises(TargetBlockedError, match=r"^shop.items"):
        patient.write(ORDERS, ITEMS, error=AWAY)
    patient.write(ORDERS)
    tried, told = patient.tried, patient_tells(patient)
    with pytest.raises(TargetBlockedError, match=r"^shop.items"):
        patient.write(ITEMS, error=AWAY)
    assert (patient.tried - tried, told()) == (1, 0)
    # Once it took something it is one like the others.
    patient.write(ITEMS)


def test_one_that_was_blocked_and_begins_anew_is_waited_for_like_any_other() -> None:
    server = Server(silent={ITEMS})
    patient = Patient(server)
    with pytest.raises(TargetBlockedError):
        patient.write(ITEMS, error=AWAY)
    server.silent = set()
    with pytest.raises(SinkError) as raised:
        patient.write(ITEMS, error=AWAY)
    assert type(raised.value) is SinkError


def test_where_nobody_is_there_for_two_targets_the_rest_are_not_asked_for() -> None:
    names = [TableId("shop", f"t{number}") for number in range(50)]
    server = Server(silent=set(names))
    patient = Patient(server, Records({str(name): (1, 1) for name in names}))
    with pytest.raises(SinkError) as raised:
        patient.write(*names, error=AWAY)
    assert type(raised.value) is SinkError
    assert len(server.asked) <= 2 * 3


def patient_tells(patient: Patient) -> Callable[[], int]:
    """How often the patience has begun to wait since."""
    told: list[str] = []
    patient.patience._sink_retry._retrier._notify = told.append
    return lambda: len(told)
