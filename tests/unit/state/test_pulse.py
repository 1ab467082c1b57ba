"""The waiting side's table of cases, and the driver's own: it finds out that it was replaced."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from raycdc.core.threads import Threads
from raycdc.driver.leadership import lease_if_free
from raycdc.errors import FencedError, StateError
from raycdc.state import codec
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.drivers.heartbeat import RENEW_S, SILENT_S, DriverHeartbeat, DriverWatch, Vacancy, require_vacant
from raycdc.state.drivers.holder import Holder, lock_of
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import CheckpointStore

ELSEWHERE = Holder("db7", "another kernel", 42)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


class Waiting:
    """A standby with a clock of its own, and a lock that `locked_by` has."""

    def __init__(self, store: CheckpointStore) -> None:
        self.now_s = 100.0
        self.locked_by = ""
        self._watch = DriverWatch(store.generations, lambda: self.locked_by, lambda: self.now_s)

    def poll(self, *, after_s: float = 0.0) -> Vacancy | str:
        self.now_s += after_s
        return self._watch.poll()


def test_a_state_that_nobody_had_is_free(store: CheckpointStore) -> None:
    assert Waiting(store).poll() == Vacancy(0, "nobody had it yet")


def test_a_driver_elsewhere_has_its_state_as_long_as_it_says_so(store: CheckpointStore) -> None:
    own, waiting = store.generations.next(), Waiting(store)
    for beat in range(1, 4):
        store.generations.show(own, replace(ELSEWHERE, beat=beat))
        assert waiting.poll(after_s=SILENT_S - 1) == "process 42 on db7"
    assert waiting.poll(after_s=SILENT_S) == Vacancy(own, "process 42 on db7 gave no sign of life for 15 s")


def test_one_that_claims_its_next_generation_within_a_look_has_the_state(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.generations.show(store.generations.next(), ELSEWHERE)
    waiting, newest = Waiting(store), store.generations.newest
    claimed: list[OwnGeneration] = []

    def read() -> int:
        found = newest()
        if not claimed:
            monkeypatch.undo()
            claimed.append(store.generations.next())
            store.generations.show(claimed[0], replace(ELSEWHERE, beat=2))
            for file in (store.path / "generations").glob(f"{found:010d}.*"):
                file.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(store.generations, "newest", read)
    assert waiting.poll() == "process 42 on db7"
    assert store.generations.newest_holder()[0] == claimed[0]


def test_a_generation_that_a_driver_raised_is_a_sign_of_life(store: CheckpointStore) -> None:
    own, waiting = store.generations.next(), Waiting(store)
    store.generations.show(own, ELSEWHERE)
    waiting.poll()
    store.generations.raised(own)
    assert not isinstance(waiting.poll(after_s=SILENT_S), Vacancy)


def test_a_stopped_process_keeps_the_lock_and_not_the_state(store: CheckpointStore) -> None:
    own, waiting = store.generations.next(), Waiting(store)
    store.generations.show(own, replace(Holder.myself(), locked=True))
    waiting.locked_by = "1"
    assert not isinstance(waiting.poll(), Vacancy)
    assert isinstance(waiting.poll(after_s=SILENT_S), Vacancy)


def test_a_process_that_died_here_is_not_waited_for(store: CheckpointStore) -> None:
    own, waiting = store.generations.next(), Waiting(store)
    me = replace(Holder.myself(), locked=True)
    store.generations.show(own, me)
    assert waiting.poll() == Vacancy(own, f"{me} is gone")
    # One that never had the lock may be there without it.
    store.generations.show(own, replace(me, locked=False))
    assert waiting.poll() == str(me)


def test_one_that_died_here_with_another_work_folder_is_not_waited_for(store: CheckpointStore, tmp_path: Path) -> None:
    """Of a state on a store; ours is a lock that it never met."""
    file = tmp_path / "lease"
    lock = LocalFolder(tmp_path).lease("lease")
    own, waiting = store.generations.next(), Waiting(store)
    me = replace(Holder.myself(), locked=True, lock=lock_of(file), lock_file=str(file))
    store.generations.show(own, me)
    assert waiting.poll() == str(me)
    lock.release()
    assert waiting.poll() == Vacancy(own, f"{me} is gone")
    # Another file that has the name now is no proof, and neither is none.
    file.rename(tmp_path / "moved")
    assert waiting.poll() == str(me)
    file.touch()
    assert waiting.poll() == str(me)


def test_one_that_left_in_order_is_not_waited_for(store: CheckpointStore) -> None:
    own = store.generations.next()
    store.generations.show(own, replace(ELSEWHERE, ended=True))
    assert Waiting(store).poll() == Vacancy(own, "process 42 on db7 has ended")


def test_a_driver_of_an_older_version_has_its_state_as_long_as_its_lock(store: CheckpointStore) -> None:
    (store.path / "gen").write_bytes(codec.encode({"version": 1, "generation": 7}))
    waiting = Waiting(store)
    waiting.locked_by = "12"
    assert [waiting.poll(after_s=SILENT_S) for _ in range(3)] == ["process 12"] * 3
    waiting.locked_by = ""
    assert waiting.poll() == Vacancy(7, "nobody has it")


def test_a_damaged_heartbeat_is_that_of_a_driver_that_may_be_alive(store: CheckpointStore) -> None:
    """Of a newer version it is no damage. On this machine the lock says whether the driver is alive."""
    own, waiting = store.generations.next(), Waiting(store)
    store.generations.show(own, replace(ELSEWHERE, beat=1))
    heartbeat = store.path / "generations" / f"{own:010d}.pulse.json"
    assert waiting.poll() == "process 42 on db7"
    heartbeat.write_bytes(heartbeat.read_bytes()[:40])
    claimed = waiting.poll()
    assert claimed == str(Holder.myself())
    assert isinstance(waiting.poll(after_s=SILENT_S), Vacancy)
    store.generations.show(own, replace(ELSEWHERE, beat=2))
    assert waiting.poll() == "process 42 on db7"
    heartbeat.write_bytes(b"")
    store.lease().release()
    heartbeat.write_bytes(codec.encode({"version": 99}))
    with pytest.raises(StateError, match="written by a newer raycdc"):
        waiting.poll()


def test_of_two_that_waited_one_takes_over(store: CheckpointStore) -> None:
    own = store.generations.next()
    assert store.generations.take_over(own) == own + 1
    assert store.generations.take_over(own) is None


class Ticks(Threads):
    """A thread that the test runs itself; each wait is one tick."""

    def __init__(self, ticks: int) -> None:
        self.ticks = ticks

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        assert timeout_s == RENEW_S
        self.ticks -= 1
        return self.ticks < 0


def test_a_driver_that_was_replaced_says_so_and_renews_nothing_more(store: CheckpointStore) -> None:
    own, lost = store.generations.next(), list[FencedError]()
    pulse = DriverHeartbeat(
        store.generations, lambda: own, lease=partial(lease_if_free, store), on_lost=lost.append, threads=Ticks(0)
    )
    pulse.require_held()
    successor = store.generations.take_over(own)
    assert successor is not None
    store.generations.show(successor, ELSEWHERE)
    pulse._threads = Ticks(2)
    pulse._run()
    assert "".join(map(str, lost)) == (
        f"Another driver, process 42 on db7, took over the state in {store.path}: generation 2 is the newest, and this "
        "one has 1. Nothing more of this one is accepted; it ends."
    )
    with pytest.raises(FencedError):
        pulse.require_held()
    pulse.close()
    assert store.generations.holder(successor) == ELSEWHERE


def test_the_successor_of_a_stopped_driver_gets_the_lock_when_that_is_gone(store: CheckpointStore) -> None:
    stopped, own = store.lease(), store.generations.next()
    pulse = DriverHeartbeat(
        store.generations, lambda: own, lease=partial(lease_if_free, store), on_lost=print, threads=Ticks(0)
    )
    assert not locked(store, own)
    stopped.release()
    pulse._threads = Ticks(1)
    pulse._run()
    assert locked(store, own)
    pulse.close()
    store.lease().release()


def test_a_state_in_a_folder_is_refused_where_a_driver_on_another_machine_gives_signs(store: CheckpointStore) -> None:
    own, ended = store.generations.next(), threading.Event()
    store.generations.show(own, ELSEWHERE)

    def live() -> None:
        beat = 1
        while not ended.wait(0.1):
            beat += 1
            store.generations.show(own, replace(ELSEWHERE, beat=beat))

    other = threading.Thread(target=live)
    other.start()
    try:
        with pytest.raises(StateError, match="in use by process 42 on db7"):
            store.lease()
    finally:
        ended.set()
        other.join()
    store.generations.show(own, replace(ELSEWHERE, ended=True))
    store.lease().release()


def test_a_driver_of_this_machine_that_died_before_its_first_sign_is_not_waited_for(store: CheckpointStore) -> None:
    store.generations.next()
    require_vacant(store.generations, "here", lock="", threads=Never())


class Never(Threads):
    """Nobody waits."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        raise AssertionError("waits")


def locked(store: CheckpointStore, own: OwnGeneration) -> bool:
    holder = store.generations.holder(own)
    assert holder is not None
    return holder.locked


def test_a_driver_that_ends_does_not_wait_for_a_store_that_does_not_answer(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, own = threading.Event(), threading.Event(), store.generations.next()
    pulse = DriverHeartbeat(store.generations, lambda: own, lease=lambda: None, on_lost=lambda _: None, threads=Hasty())
    shown: list[Holder] = []

    def show(_: OwnGeneration, holder: Holder) -> None:
        shown.append(holder)
        asked.set()
        assert answers.wait(60)

    monkeypatch.setattr(store.generations, "show", show)
    assert asked.wait(60)
    pulse.close()
    answers.set()
    assert [holder.ended for holder in shown] == [False]


class Hasty(Threads):
    """Waits a hundredth of what it should."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s / 100)
