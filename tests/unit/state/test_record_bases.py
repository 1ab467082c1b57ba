"""Commit records that tell what changed are read as if they were whole: whoever wrote them, and whoever dies where."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raycdc.driver.state_admin.examination import StartEffect, examine
from raycdc.errors import ParkReason, StateError
from raycdc.state import codec
from raycdc.state.commits.commit_record import CommitFiles
from raycdc.state.commits.record_bases import RecordBases, reference_of
from raycdc.state.files.folder import Disk, LocalFolder
from raycdc.state.location import StateLocation
from raycdc.state.manifests.manifest_files import ManifestCompaction
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import KEEP_COMMITTED, CheckpointStore, CommitRecord, RoutedTarget

#: Every record names a base, and half of the targets may be others before there is a new one.
ALWAYS = ManifestCompaction(whole_below=0, record_fraction_max=0.5)
GOLDEN = Path(__file__).parent / "golden"
NAMES = [f"shop.t{number}" for number in range(5)]
VECTORS = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, 3), st.just(3)))
ROUTES = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(RoutedTarget, st.sampled_from([("shop.a",), ("shop.a", "shop.b")]), st.sampled_from(["", "f1"])),
)
PARKED = ParkedTarget(1, None, ParkReason.VALUE, "it is full", 7, {"shop.t1": 0})
RECORDS = st.builds(
    CommitRecord,
    epoch=st.just(0),
    generation=st.just(0),
    committed_ms=st.integers(0, 9),
    tables=VECTORS,
    routes=ROUTES,
    known=VECTORS,
    parked=st.sampled_from([{}, {"shop.t1": PARKED}]),
)


def _store(
    folder: Path, *, compaction: ManifestCompaction | None = ALWAYS, disk: Disk | None = None
) -> CheckpointStore:
    return CheckpointStore(folder / "state", pipeline="p", compaction=compaction, disk=disk or Disk())


def _documents(folder: Path) -> list[dict[str, Any]]:
    """The records that are there, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted((folder / "state" / "commits").iterdir())]


def _bases(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "state" / "bases").glob("record-*"))


def _whole(folder: Path) -> None:
    """Every record that is kept can be read: what it names is there."""
    for document in _documents(folder):
        reference = reference_of(document)
        assert reference is None or (folder / "state" / reference.name).exists()


@given(
    records=st.lists(st.tuples(RECORDS, st.booleans(), st.booleans()), min_size=1, max_size=15),
    share=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_recorded_is_read_and_kept_by_whomever(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[CommitRecord, bool, bool]], share: float
) -> None:
    folder = tmp_path_factory.mktemp("records")
    compaction = ManifestCompaction(whole_below=2, record_fraction_max=share)
    store = _store(folder, compaction=compaction)
    epoch, generation = 1, 0
    for made, is_new, again in records:
        if is_new:
            # Another driver goes on.
            store = _store(folder, compaction=compaction)
            generation = store.generations.next()
        epoch += 0 if again else 1
        record = replace(made, epoch=epoch, generation=generation)
        store.write_commit(record)
        assert store.last_commit() == _store(folder).last_commit() == record
        _whole(folder)


def test_a_record_takes_as_much_as_changed_and_bases_are_few(tmp_path: Path) -> None:
    store, tables = _store(tmp_path, compaction=None), {f"shop.t{number}": (1, 3) for number in range(2_000)}
    for epoch in range(1, 61):
        tables = {**tables, **{f"shop.t{(epoch * 10 + n) % 2_000}": (epoch, 3) for n in range(10)}}
        store.write_commit(CommitRecord(epoch, 0, 5, tables))
        _whole(tmp_path)
        # The one in use, and those of the records that are kept until they are looked for.
        assert len(_bases(tmp_path)) <= 5
    # A thirty-second of 2,000, but for the first of them: ten records until then.
    assert all(len(document["tables"]) <= 2_000 / 32 for document in _documents(tmp_path))
    last = _store(tmp_path).last_commit()
    assert last is not None
    assert last.tables == tables


def test_processes_that_end_after_a_few_commits_leave_few_bases(tmp_path: Path) -> None:
    tables, epoch = {f"shop.t{number}": (1, 3) for number in range(2_000)}, 0
    for _ in range(20):
        store = _store(tmp_path, compaction=None)
        for _ in range(3):
            epoch += 1
            tables = {**tables, f"shop.t{epoch}": (epoch, 3)}
            store.write_commit(CommitRecord(epoch, 0, 5, tables))
            _whole(tmp_path)
    # A base for each process whose records are kept, and one that the next start looks for.
    assert len(_bases(tmp_path)) <= 6


def test_a_record_of_few_targets_is_whole_as_ever(tmp_path: Path) -> None:
    store = _store(tmp_path, compaction=None)
    store.write_commit(CommitRecord(1, 0, 5, {"shop.t": (1, 3)}))
    assert [(document["version"], "base" in document) for document in _documents(tmp_path)] == [(1, False)]
    assert _bases(tmp_path) == []


def test_a_whole_record_of_many_targets_by_an_older_version_is_gone_on_from(tmp_path: Path) -> None:
    tables = {f"shop.t{number}": (1, 3) for number in range(3_000)}
    older = _store(tmp_path, compaction=ManifestCompaction(whole_below=1 << 30))
    older.write_commit(CommitRecord(1, 0, 5, tables))
    store = _store(tmp_path, compaction=None)
    found = store.last_commit()
    assert found is not None
    assert found.tables == tables
    for epoch in (2, 3):
        store.write_commit(CommitRecord(epoch, 0, 5, {**tables, "shop.t1": (epoch, 3)}))
    whole, first, second = _documents(tmp_path)
    assert (whole["version"], first["version"], second["version"]) == (1, 4, 4)
    assert (first["tables"], second["tables"]) == ({}, {"shop.t1": [3, 3]})


def test_golden_record_of_version_4_and_its_base_are_read_and_written_unchanged(tmp_path: Path) -> None:
    first = CommitRecord(
        epoch=4,
        generation=2,
        committed_ms=1_700_000_000_000,
        tables={"shop.a": (4, 3), "shop.b": (2, 3), "shop.gone": (1, 3)},
        routes={"shop.b": RoutedTarget(("shop.b1", "shop.b2"), "f1", {"shop.b1": ["old"]}, {"shop.b2": "upper"})},
        known={"_raycdc_known_shop.a": (4, 3)},
    )
    of_3 = first.routes
    first = replace(first, routes={**of_3, "shop.a": RoutedTarget(("shop.a",), "f2", refused=("f3",))})
    second = replace(
        first,
        epoch=5,
        committed_ms=1_700_000_001_000,
        tables={"shop.a": (5, 3), "shop.b": (2, 3)},
        known={"_raycdc_known_shop.a": (5, 3)},
        parked={"shop.b": PARKED},
    )
    store = _store(tmp_path, compaction=replace(ALWAYS, record_fraction_max=1.0))
    assert [store.generations.next() for _ in range(2)] == [1, 2]
    store.write_commit(first)
    store.write_commit(second)
    golden = {path.relative_to(GOLDEN / "records-v4"): path for path in (GOLDEN / "records-v4").rglob("*.json")}
    assert len(golden) == 3
    for name, path in golden.items():
        assert (tmp_path / "state" / name).read_bytes() == path.read_bytes(), name
    for version, expected in (("records-v3", replace(second, routes=of_3)), ("records-v4", second)):
        other = tmp_path / version
        _store(other)
        shutil.copytree(GOLDEN / version, other / "state", dirs_exist_ok=True)
        assert _store(other).last_commit() == expected


class DiedError(Exception):
    """The process ends here."""


class MortalDisk(Disk):
    """Ends its process at one operation, before or after it."""

    def __init__(self, left: int, *, after: bool) -> None:
        self.left, self.after = left, after

    def _act(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise DiedError
        act()
        if self.left < 0:
            raise DiedError

    def create(self, path: Path, parts: Any) -> None:
        self._act(lambda: Disk.create(self, path, parts))

    def rename(self, path: Path, to: Path) -> None:
        self._act(lambda: Disk.rename(self, path, to))

    def link(self, path: Path, to: Path) -> None:
        self._act(lambda: Disk.link(self, path, to))

    def delete(self, path: Path) -> None:
        self._act(lambda: Disk.delete(self, path))


@pytest.mark.parametrize("after", [False, True])
def test_whoever_dies_at_any_operation_leaves_a_record_that_is_one_of_the_two(tmp_path: Path, after: bool) -> None:
    """Every second epoch has a new base, which old ones are deleted for."""
    survived, left = False, 0
    while not survived:
        folder = tmp_path / f"{left}"
        records = [CommitRecord(n, 0, n, dict.fromkeys(NAMES, (n, 3))) for n in range(1, 2 * KEEP_COMMITTED + 6)]
        store, written = _store(folder, disk=(disk := MortalDisk(1 << 30, after=after))), 0
        disk.left = left
        with suppress(DiedError):
            for record in records:
                store.write_commit(record)
                written += 1
            survived = True
        found = _store(folder).last_commit()
        allowed = [None, *records][written : written + 2]
        assert found in allowed
        _whole(folder)
        # The next driver goes on.
        later = _store(folder)
        more = CommitRecord(written + 2, later.generations.next(), 5, {"shop.t1": (written + 2, 3)})
        later.write_commit(more)
        assert _store(folder).last_commit() == more
        left += 1 if left < 12 else 13


def test_a_driver_that_was_replaced_harms_no_base_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, tables = _store(tmp_path), dict.fromkeys(NAMES, (1, 3))
    for epoch in range(1, KEEP_COMMITTED + 2):
        stale.write_commit(CommitRecord(epoch, 0, 5, dict.fromkeys(NAMES, (epoch, 3))))
    driver = _store(tmp_path)
    generation = driver.generations.next()
    for epoch in range(KEEP_COMMITTED + 2, 3 * KEEP_COMMITTED):
        tables = dict.fromkeys(NAMES, (epoch, 3))
        driver.write_commit(CommitRecord(epoch, generation, 5, tables))
    newest = driver.last_commit()
    # It was stopped between the look at the generation and what it writes, again and again.
    monkeypatch.setattr(stale.generations, "require_newest", lambda *_: None)
    for epoch in range(KEEP_COMMITTED + 1, 2 * KEEP_COMMITTED + 3):
        stale.write_commit(CommitRecord(epoch, 0, 6, {"shop.t1": (epoch, 3)}))
        assert _store(tmp_path).last_commit() == newest
        reference = reference_of(_newest(tmp_path))
        assert reference is not None
        assert (tmp_path / "state" / reference.name).exists()
    later = CommitRecord(4 * KEEP_COMMITTED, generation, 5, {**tables, "shop.t2": (4 * KEEP_COMMITTED, 3)})
    driver.write_commit(later)
    assert _store(tmp_path).last_commit() == later


def _newest(folder: Path) -> dict[str, Any]:
    found = CommitFiles(LocalFolder(folder / "state")).newest()
    assert found is not None
    return found[1]


def test_a_base_of_a_newer_driver_waits_for_its_record(tmp_path: Path) -> None:
    """Its writer has put it there, and not the record that names it yet."""
    old = _store(tmp_path)
    ahead = RecordBases(LocalFolder(tmp_path / "state"), ALWAYS)
    ahead.put(ahead.encoded(CommitRecord(1, 9, 5, {"shop.t1": (1, 3)})))
    (waiting,) = _bases(tmp_path)
    for epoch in range(1, 3 * KEEP_COMMITTED):
        old.write_commit(CommitRecord(epoch, 0, 5, dict.fromkeys(NAMES, (epoch, 3))))
    assert waiting in _bases(tmp_path)


def test_a_reader_that_finds_its_record_pruned_reads_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(tmp_path)
    store.write_commit(CommitRecord(1, 0, 5, {"shop.t1": (1, 3)}))
    reader, newest = _store(tmp_path), CommitFiles.newest

    def slow(files: CommitFiles) -> Any:
        found = newest(files)
        if found is not None and found[1]["epoch"] == 1:
            for epoch in range(2, 3 * KEEP_COMMITTED):
                store.write_commit(CommitRecord(epoch, 0, 5, dict.fromkeys(NAMES, (epoch, 3))))
        return found

    monkeypatch.setattr(CommitFiles, "newest", slow)
    record = reader.last_commit()
    assert record is not None
    assert record.epoch == 3 * KEEP_COMMITTED - 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, "is missing, and .*commits/0000000001.json is written as a change of it"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cannot be used: it is not JSON"),
        (lambda path: path.write_bytes(codec.encode({"version": 1})), "cannot be used: its content is not that which"),
    ],
)
def test_a_base_that_is_of_no_use_is_named_and_found_by_state_check(
    tmp_path: Path, damage: Callable[[Path], Any], told: str
) -> None:
    _store(tmp_path).write_commit(CommitRecord(1, 0, 5, {"shop.t1": (1, 3)}))
    assert not [f for f in examine(StateLocation.of(tmp_path / "state")).findings if "epochs/" not in f.name]
    (base,) = (tmp_path / "state" / "bases").glob("record-*")
    damage(base)
    with pytest.raises(StateError, match=f"{re.escape(str(base))}|commits") as caught:
        _store(tmp_path).last_commit()
    assert re.search(told, str(caught.value))
    findings = [f for f in examine(StateLocation.of(tmp_path / "state")).findings if "epochs/" not in f.name]
    assert findings
    assert all(finding.effect is StartEffect.STOPS for finding in findings)


def test_a_record_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    _store(tmp_path).write_commit(CommitRecord(1, 0, 5, {"shop.t1": (1, 3)}))
    (path,) = (tmp_path / "state" / "commits").iterdir()
    path.write_bytes(codec.encode({**codec.decode(path.read_bytes(), origin="it"), "version": 5}))
    with pytest.raises(StateError, match="newer raycdc"):
        _store(tmp_path).last_commit()
