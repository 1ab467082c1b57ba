"""Manifests that are changes are read as if they were whole: after any epochs, with any bases, whoever dies where."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.sandbox.background import again_and_again
from raycdc.state import codec, store
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.files.folder import Disk
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.manifests.manifest_files import ManifestCompaction
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.store import CheckpointStore, CommitRecord

ALWAYS = ManifestCompaction(whole_below=0, fraction_max=1000.0, chain_max=3)
#: Committed epochs that are kept here: as few as make a difference.
KEPT = 2
TABLES = [f"shop.t{number}" for number in range(6)]
#: To Python some of these are equal.
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, True, False, 1.0, None, "ä\u2028", [1, True], {"a": {"b": 1}}, {}]
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), st.one_of(VALUES, st.dictionaries(st.sampled_from("xyz"), VALUES)))


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "KEEP_COMMITTED", KEPT)
        yield


class DiedError(Exception):
    """The process ends here."""


class MortalDisk(Disk):
    """Ends its process at an operation."""

    def __init__(self) -> None:
        self.left: int | None = None

    def _operation(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise DiedError

    def create(self, path: Path, parts: Sequence[bytes]) -> None:
        self._operation()
        super().create(path, parts)

    def rename(self, path: Path, to: Path) -> None:
        self._operation()
        super().rename(path, to)

    def link(self, path: Path, to: Path) -> None:
        self._operation()
        super().link(path, to)

    def delete(self, path: Path) -> None:
        self._operation()
        super().delete(path)


class Pipeline:
    """A state with a coordinator and a driver, which have a store each, and all epochs as they were meant."""

    def __init__(self, folder: Path, compaction: ManifestCompaction = ALWAYS) -> None:
        self.folder = folder
        self.compaction = compaction
        self.meant: dict[int, str] = {}
        self.committed = 0
        self.generation = OwnGeneration(0)
        self.disk = MortalDisk()
        self.begin()

    def begin(self) -> None:
        """Both processes are new."""
        self.disk.left = None
        self.driver = self.open()
        self.generation = self.driver.generations.next()
        self.driver.manifest_files.epochs.take_over(self.generation)
        self.driver.generations.write_as(lambda: self.generation)
        self.coordinator = self.open()
        self.last = self.coordinator.last_manifest()

    def open(self) -> CheckpointStore:
        return CheckpointStore(self.folder / "state", disk=self.disk, compaction=self.compaction)

    def manifest(self, tables: dict[str, Any], given: dict[str, Any], *, gone: Sequence[str] = ()) -> Manifest:
        """The next one: these tables of the stream and of the enumerator are others, and these fields."""
        before = {} if self.last is None else _states(self.last)
        stream, enumerator = before.get("stream", {}), {} if self.last is None else self.last.enumerator.to_json()
        known = {name: value for name, value in stream.get("tables", {}).items() if name not in gone}
        from_splits = {**before, "stream": {**stream, **given}}
        to_splits = {**from_splits, "stream": {**stream, "position": {"at": given}, "tables": {**known, **tables}}}
        if gone:
            to_splits[gone[0]] = {"position": tables}
        counted = {TableId.parse(name): len(name) for name in tables}
        return Manifest(
            epoch=self.coordinator.next_epoch(),
            generation=self.generation,
            created_ms=5,
            from_splits={name: SealedSplit.from_json(state) for name, state in from_splits.items()},
            to_splits={name: SealedSplit.from_json(state) for name, state in to_splits.items()},
            enumerator=EnumeratorState.from_json({**enumerator, **given, "tables": {**known, **tables}}),
            lost={**({} if self.last is None else self.last.lost), **counted},
        )

    def seal(self, manifest: Manifest) -> None:
        self.meant[manifest.epoch] = text_of(manifest)
        self.coordinator.write_manifest(manifest)
        self.last = manifest

    def compact(self) -> None:
        """What is due is written, if anything is."""
        due = self.coordinator.manifest_files.take_due()
        if due is not None:
            due()

    def commit(self) -> None:
        """The driver reads the next epoch and commits it."""
        manifest = self.driver.manifest_after(self.committed)
        if manifest is not None:
            assert text_of(manifest) == self.meant[manifest.epoch]
            self.committed = manifest.epoch
            self.driver.write_commit(CommitRecord(manifest.epoch, self.generation, 0, {}))

    def die_at(self, operation: int, act: Callable[[], None]) -> None:
        """`act`, which ends at that operation of the disk, if it has so many; and a new start."""
        self.disk.left = operation
        try:
            act()
        except DiedError:
            self.begin()
            record = self.driver.last_commit()
            self.committed = record.epoch if record else 0
        self.disk.left = None

    def drop(self) -> None:
        """A start that gives up all that is not committed."""
        self.begin()
        for epoch in self.driver.drop_after(self.committed):
            del self.meant[epoch]
        self.begin()

    def check(self) -> None:
        """Everything that is kept is read as it was meant, by somebody who opens the state now."""
        fresh, oldest = self.open(), max(0, self.committed - KEPT + 1)
        for epoch in [epoch for epoch in fresh.sealed_epochs() if epoch >= oldest]:
            assert text_of(self.open().manifest(epoch)) == self.meant[epoch]
            assert text_of(fresh.manifest(epoch)) == self.meant[epoch]


def text_of(manifest: Manifest) -> str:
    """A whole manifest as its checksum sees it."""
    return json.dumps(manifest.to_json(), sort_keys=True, ensure_ascii=False)


def _states(manifest: Manifest) -> dict[str, Any]:
    return {name: state.to_json() for name, state in manifest.to_splits.items()}


SEAL = st.tuples(
    st.just("seal"),
    st.dictionaries(st.sampled_from(TABLES), VALUES, max_size=3),
    OBJECTS,
    st.lists(st.sampled_from(TABLES), max_size=1),
)
COMMIT = st.tuples(st.just("commit"))
OTHERS = st.tuples(st.sampled_from(["compact", "compact", "begin", "drop"]))
STEPS = st.lists(st.one_of(SEAL, SEAL, SEAL, COMMIT, COMMIT, OTHERS), min_size=15, max_size=40)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, deaths=st.lists(st.integers(0, 12), max_size=40))
def test_a_change_is_read_as_the_whole_manifest_whatever_came_before_and_whoever_died(
    steps: list[tuple[Any, ...]], deaths: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipeline = Pipeline(tmp_path_factory.mktemp("changes"))
    for number, (kind, *arguments) in enumerate(steps):
        at = deaths[number] if number < len(deaths) else 1000
        match kind:
            case "seal":
                manifest = pipeline.manifest(arguments[0], arguments[1], gone=arguments[2])
                pipeline.die_at(at, lambda manifest=manifest: pipeline.seal(manifest))  # type: ignore[misc]
            case "commit":
                pipeline.die_at(at, pipeline.commit)
            case "compact":
                pipeline.die_at(at, pipeline.compact)
            case "begin":
                pipeline.begin()
            case "drop":
                pipeline.drop()
    pipeline.check()


@given(before=OBJECTS, after=OBJECTS, depth=st.integers(0, 3))
def test_a_patch_gives_what_came_of_the_object_to_the_last_digit(
    before: dict[str, Any], after: dict[str, Any], depth: int
) -> None:
    patch = Patch.between(before, after, depth=depth)
    written = json.loads(json.dumps(patch.to_json()))
    assert json.dumps(Patch.from_json(written).onto(before), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(patch) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))


def _sealed(pipeline: Pipeline, count: int) -> None:
    for number in range(count):
        pipeline.seal(pipeline.manifest({TABLES[number % 6]: number}, {}))


def versions(pipeline: Pipeline) -> dict[int, int]:
    files = sorted((pipeline.folder / "state" / "epochs").glob("*.json"))
    return {int(file.stem): json.loads(file.read_text())["version"] for file in files}


@given(document=OBJECTS)
def test_a_checksum_is_that_of_the_canonical_text_though_it_is_made_in_pieces(document: dict[str, Any]) -> None:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert codec.encode_signed(document)[1] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1_000])
def test_a_checksum_is_that_of_the_canonical_text_however_many_entries_an_object_has(count: int) -> None:
    entries = {f"täble {number}": [number, {"b": None, "a": "1"}] for number in range(count)}
    document = {"version": 1, "tables": entries, **entries}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert codec.encode_signed(document)[1] == hashlib.sha256(text.encode()).hexdigest()


def test_a_start_reads_what_all_its_epochs_follow_once(tmp_path: Path) -> None:
    class CountingDisk(Disk):
        reads_of_first = 0

        def read(self, path: Path) -> bytes:
            self.reads_of_first += path.name == "0000000001.json"
            return super().read(path)

    _sealed(Pipeline(tmp_path, ManifestCompaction(whole_below=0, fraction_max=1000.0)), 3)
    disk = CountingDisk()
    again = CheckpointStore(tmp_path / "state", pipeline="p", create=False, disk=disk)
    again.last_manifest()
    before = disk.reads_of_first
    assert [manifest.epoch for manifest in again.manifests(1)] == [2, 3]
    assert disk.reads_of_first == before


def test_a_small_state_is_written_whole_as_older_versions_read_it(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, ManifestCompaction())
    _sealed(pipeline, 3)
    assert versions(pipeline) == {1: 3, 2: 3, 3: 3}


def test_a_change_names_what_changed_alone(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    _sealed(pipeline, 2)
    (written,) = (tmp_path / "state" / "epochs").glob("*2.json")
    document = json.loads(written.read_text())
    tables = {"put": {"shop.t1": 1}}
    assert document["changes"]["to_splits"] == {"inside": {"stream": {"inside": {"tables": tables}}}}
    assert document["changes"]["enumerator"] == {"inside": {"tables": tables}}


def test_pruning_keeps_what_a_kept_manifest_follows_and_a_base_lets_it_go(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, replace(ALWAYS, chain_max=20))
    _sealed(pipeline, 15)
    for _ in range(15):
        pipeline.commit()
    assert min(versions(pipeline)) == 1
    pipeline.check()
    for _ in range(20):
        _sealed(pipeline, 1)
        pipeline.compact()
        pipeline.commit()
    # The oldest kept one follows the base of epoch 21, which follows nothing.
    assert min(versions(pipeline)) == 21
    assert [file.name for file in (tmp_path / "state" / "bases").glob("*.jsonl")] == ["0000000021.jsonl"]
    pipeline.check()


def test_a_commit_may_prune_while_other_threads_look_at_epochs(tmp_path: Path) -> None:
    files = CheckpointStore(tmp_path, pipeline="shop").manifest_files
    numbers = count(1_000)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        # There is no such epoch, which is remembered, too.
        with again_and_again(lambda: files.kept_from(next(numbers))):
            while next(numbers) < 6_000:
                files.prune(1_000)
    finally:
        sys.setswitchinterval(before)


def test_where_nobody_writes_bases_a_manifest_is_whole_now_and_then(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    _sealed(pipeline, 16)
    assert [epoch for epoch, version in versions(pipeline).items() if version == 3] == [1, 8, 15]
    pipeline.check()


def test_the_same_manifest_written_again_is_harmless_also_where_it_would_follow_another_base_now(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path)
    _sealed(pipeline, 5)
    last = pipeline.last
    assert last is not None
    pipeline.compact()
    pipeline.coordinator.write_manifest(last)
    pipeline.coordinator.write_manifest(last)
    with pytest.raises(StateError, match="exists already"):
        pipeline.coordinator.write_manifest(replace(last, created_ms=6))


@pytest.mark.parametrize("name", ["epochs/0000000003.json", "bases/0000000005.jsonl"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damage_of_what_a_manifest_follows_is_named_and_is_never_read_past(
    name: str, damage: str, tmp_path: Path
) -> None:
    path = _compacted(tmp_path, compacts=name.startswith("bases")) / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else data.replace(b"shop.t", b"shop.u"))
    with pytest.raises(StateError, match=path.name):
        CheckpointStore(tmp_path / "state", create=False).last_manifest()


def test_a_manifest_follows_one_document_and_no_other_of_its_number(tmp_path: Path) -> None:
    path = _compacted(tmp_path, compacts=False) / "epochs" / "0000000003.json"
    path.write_bytes(codec.encode({**codec.decode(path.read_bytes(), origin=""), "created_ms": 6}))
    with pytest.raises(StateError, match=r"0000000003.json is another one"):
        CheckpointStore(tmp_path / "state", create=False).last_manifest()
    path.unlink()
    with pytest.raises(StateError, match=r"0000000003.json is missing"):
        CheckpointStore(tmp_path / "state", create=False).last_manifest()


def test_a_base_of_another_document_of_its_number_is_passed_over(tmp_path: Path) -> None:
    path = _compacted(tmp_path, compacts=True) / "bases" / "0000000005.jsonl"
    expected = CheckpointStore(tmp_path / "state", create=False).last_manifest()
    head, *lines = path.read_bytes().splitlines(keepends=True)[:-1]
    lines.insert(0, head.replace(b'"of": "', b'"of": "0'))
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    path.write_bytes(b"".join([*lines, json.dumps({"sha": digest}).encode(), b"\n"]))
    assert CheckpointStore(tmp_path / "state", create=False).last_manifest() == expected


def _compacted(folder: Path, *, compacts: bool) -> Path:
    """A state of some changes, which may have a base behind the fifth."""
    pipeline = Pipeline(folder, replace(ALWAYS, chain_max=4))
    _sealed(pipeline, 5)
    if compacts:
        pipeline.compact()
        _sealed(pipeline, 2)
    return folder / "state"


@pytest.mark.parametrize("pruned", [(), (1, 2, 3)], ids=["all of it", "from the base on"])
def test_golden_changes_of_version_4_and_their_base_are_read_as_they_were_meant(
    pruned: Sequence[int], tmp_path: Path
) -> None:
    golden = Path(__file__).parent / "golden" / "changes-v4"
    folder = CheckpointStore(tmp_path / "state").path
    for name in ("epochs", "bases"):
        shutil.copytree(golden / name, folder / name, dirs_exist_ok=True)
    for epoch in pruned:
        (folder / "epochs" / f"{epoch:010d}.json").unlink()
    for epoch in {1, 2, 3, 4, 5} - set(pruned):
        read = CheckpointStore(folder, create=False).manifest(epoch)
        assert text_of(read) == (golden / f"whole-{epoch}.json").read_text().rstrip()


def test_a_state_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    _sealed(pipeline, 2)
    path = tmp_path / "state" / "epochs" / "0000000002.json"
    document = codec.decode(path.read_bytes(), origin="")
    path.write_bytes(codec.encode({**document, "version": 5}))
    with pytest.raises(StateError, match="newer raycdc"):
        pipeline.open().last_manifest()
