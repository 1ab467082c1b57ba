"""The conformance suite of sinks: one that keeps every rule passes it, and each planted fault fails it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

from raycdc.core.failpoints import reach
from raycdc.errors import SinkError, SinkUnavailableError, TargetDroppedError, TargetModifiedError, ValueRefusedError
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, STEP_LAST, STEP_TOMBSTONE, CommitVector, TableCommit
from raycdc.sinks.steps import (
    CommitMetadata,
    ExactlyOnceSink,
    ForeignTarget,
    MissingTarget,
    OwnTarget,
    StageBatch,
    Target,
    TargetState,
)
from raycdc.sinks.tasks import LinesFile, WriteJsonLines
from raycdc.testing import SinkConformance
from raycdc.testing.epochs import Row
from raycdc.testing.sink_play import LARGE
from raycdc.testing.sink_stories import SinkHooks

LOCK = threading.RLock()
Document = dict[str, dict[str, Any]]


class JsonTarget(Target):
    """A target in a document that is written as a whole: ``{target: {"rows": […], "record": […]}}``."""

    def __init__(self, name: TableId, document: Document) -> None:
        super().__init__(name, f"The target {name}")
        self.document = document

    app_id = ""

    @property
    def key(self) -> str:
        return str(self.name)

    def read_state(self, epoch: int | None = None) -> TargetState:
        entry = self.document.get(self.key)
        if entry is None:
            return MissingTarget()
        if not entry["record"] or entry.get("pipeline") != self.app_id:
            return ForeignTarget()
        return OwnTarget(CommitVector(*entry["record"]))

    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.document[self.key] = {"rows": [], "record": None}
        self.hold(commit_metadata)

    replace = create

    def adopt(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.hold(commit_metadata)

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        names = [column.name for column in work.schema.columns]
        rows = self.document[self.key]["rows"]
        self.document[self.key]["rows"] = [{**dict.fromkeys(names), **row} for row in rows]
        self.hold(commit_metadata)

    def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
        rows = self.staged_rows(staged)
        if self.document[self.key].get("forbidden"):
            raise TargetModifiedError(f"{self.location} may not be written.")
        if any((row["qty"] or 0) > self.document[self.key].get("qty_max", math.inf) for row in rows):
            raise ValueRefusedError(f"{self.location} forbids such a qty.")
        self.document[self.key]["rows"] += rows
        self.hold(commit_metadata)
        reach("in_commit")

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self.document.setdefault(self.key, {"rows": [], "record": None})
        self.hold(commit_metadata)

    def hold(self, commit_metadata: CommitMetadata) -> None:
        vector = commit_metadata.vector
        self.document[self.key] |= {
            "record": [vector.epoch, vector.step, vector.generation, vector.digest],
            "pipeline": self.app_id,
        }

    @staticmethod
    def staged_rows(staged: list[LinesFile]) -> list[Row]:
        return [json.loads(line) for part in staged for line in Path(part.path).read_text().splitlines()]


class JsonSink(ExactlyOnceSink[JsonTarget]):
    """Keeps every rule."""

    kind = "json-document"
    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)
    target_class: ClassVar[type[JsonTarget]] = JsonTarget

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[JsonTarget]:
        if (self.folder / "away").exists():
            raise SinkUnavailableError("The document is away.")
        # Targets commit on several threads at once, and here all of them are one document.
        with LOCK:
            document = load(self.folder)
            handle = self.target_class(target, document)
            handle.app_id = self._context.app_id
            yield handle
            if writes:
                save(self.folder, document)

    def prepare(self, work: TableCommit, batch: StageBatch) -> list[LinesFile]:
        staged: list[LinesFile] = []
        path = str(self.folder / f"staged-{work.epoch}-{work.generation}-{work.target}")
        batch.add(WriteJsonLines(self._context.table_input(work), path), staged.append)
        return staged


def load(folder: Path) -> Document:
    path = folder / "document.json"
    document: Document = json.loads(path.read_text()) if path.exists() else {}
    return document


def save(folder: Path, document: Document) -> None:
    (folder / "document.json").write_text(json.dumps(document))


class Conformance(SinkConformance):
    """The suite for a class of sinks into a document."""

    sink_class: type[JsonSink] = JsonSink
    impossible: ClassVar[Mapping[str, str]] = {"widen": "Rows of a changelog are never updated."}

    def new_sink(self, folder: Path) -> JsonSink:
        return self.sink_class(folder)

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        return list(load(folder).get(str(target), {"rows": []})["rows"])

    def lose(self, folder: Path, target: TableId) -> None:
        document = load(folder)
        del document[str(target)]
        save(folder, document)

    def occupy(self, folder: Path, target: TableId) -> None:
        save(folder, {**load(folder), str(target): {"rows": [{"id": 1}], "record": None}})

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        entry = load(folder)[str(target)]
        return lambda: save(folder, {**load(folder), str(target): entry})

    def alter(self, folder: Path, target: TableId) -> None:
        document = load(folder)
        document[str(target)]["qty_max"] = LARGE - 1
        save(folder, document)

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        document = load(folder)
        document[str(to)] = document.pop(str(target))
        save(folder, document)

    def erase(self, folder: Path, target: TableId) -> None:
        document = load(folder)
        document[str(target)]["rows"] = document[str(target)]["rows"][:3]
        save(folder, document)

    def revoke(self, folder: Path, target: TableId) -> Callable[[], None]:
        def mark(forbidden: bool) -> None:
            document = load(folder)
            document[str(target)]["forbidden"] = forbidden
            save(folder, document)

        mark(True)
        return lambda: mark(False)

    def maintain(self, folder: Path, target: TableId) -> None:
        document = load(folder)
        document[str(target)]["comment"] = "theirs"
        save(folder, document)

    @contextmanager
    def unreachable(self, folder: Path) -> Iterator[None]:
        (folder / "away").touch()
        yield
        (folder / "away").unlink()


class TestASinkThatKeepsEveryRule(Conformance):
    pass


# -- planted faults: each a sink or a target that does one thing wrong


class WritesTheRecordLater(JsonSink):
    """Rows and record are two transactions."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            self.document[self.key]["rows"] += self.staged_rows(staged)
            save(Path(staged[0].path).parent, self.document)
            self.hold(commit_metadata)
            reach("in_commit")


class NeverLooksAtTheRecord(JsonSink):
    """An epoch that comes again is written again."""

    def commit(self, work: TableCommit, staged: Any) -> None:
        with self.opened(work.target, writes=True) as target:
            target.write(work, staged, STEP_LAST, CommitMetadata.of(work, STEP_LAST))


class KnowsNoGenerations(JsonSink):
    """A replaced driver is not fenced."""

    class target_class(JsonTarget):  # noqa: N801
        def hold(self, commit_metadata: CommitMetadata) -> None:
            record = [commit_metadata.vector.epoch, commit_metadata.vector.step, 0]
            self.document[self.key] |= {"record": record, "pipeline": self.app_id}


class BarsNothing(JsonSink):
    """A tombstone leaves no trace."""

    def tombstone(self, work: TableCommit) -> None:
        pass


class HidesRowsBehindATombstone(JsonSink):
    """An epoch whose rows are there is said to be dropped."""

    def tombstone(self, work: TableCommit) -> None:
        with self.opened(work.target, writes=True) as target:
            target.bar(work, CommitMetadata.of(work, STEP_TOMBSTONE))


class BelievesItself(JsonSink):
    """What a target holds is remembered, not read."""

    def committed(self, target: TableId) -> CommitVector | None:
        return self._reached.of(target) or super().committed(target)


class MixesTwoTables(JsonSink):
    """Rows of all tables of a stage job go to each of them."""

    def stage(self, works: Sequence[TableCommit]) -> dict[TableId, Any]:
        staged = super().stage(works)
        every = [part for parts in staged.values() for part in parts]
        return dict.fromkeys(staged, every)


class OneRecordForAll(JsonSink):
    """The record of one target counts for all."""

    class target_class(JsonTarget):  # noqa: N801
        def read_state(self, epoch: int | None = None) -> TargetState:
            records = [entry["record"] for entry in self.document.values() if entry["record"]]
            return OwnTarget(CommitVector(*max(records))) if records else super().read_state(epoch)


class ForgetsDeletions(JsonSink):
    """Rows that went stay."""

    class target_class(JsonTarget):  # noqa: N801
        @staticmethod
        def staged_rows(staged: list[LinesFile]) -> list[Row]:
            return [row for row in JsonTarget.staged_rows(staged) if row["_op"] != "-D"]


class LosesTheOrder(JsonSink):
    """Changes of an epoch are numbered the other way round."""

    class target_class(JsonTarget):  # noqa: N801
        @staticmethod
        def staged_rows(staged: list[LinesFile]) -> list[Row]:
            rows = JsonTarget.staged_rows(staged)
            numbers = [row["_seq"] for row in reversed(rows)]
            return [{**row, "_seq": number} for row, number in zip(rows, numbers, strict=True)]


class LosesAddedColumns(JsonSink):
    """A target has the columns that it was made with."""

    class target_class(JsonTarget):  # noqa: N801
        @staticmethod
        def staged_rows(staged: list[LinesFile]) -> list[Row]:
            return [{**row, "city": None} for row in JsonTarget.staged_rows(staged)]


class SkipsEmptyEpochs(JsonSink):
    """An epoch without rows leaves no record."""

    def commit(self, work: TableCommit, staged: Any) -> None:
        if work.segments:
            super().commit(work, staged)


class ShowsStagedRows(JsonSink):
    """Readers see rows before their epoch is committed."""

    def stage(self, works: Sequence[TableCommit]) -> dict[TableId, Any]:
        staged = dict(super().stage(works))
        for work in works:
            with self.opened(work.target, writes=True) as target:
                target.document[target.key]["rows"] += target.staged_rows(staged[work.target])
        return {target: [] for target in staged}


class TakesWhatIsThere(JsonSink):
    """Somebody else's target is written to without being asked for."""

    class target_class(JsonTarget):  # noqa: N801
        def read_state(self, epoch: int | None = None) -> TargetState:
            read_state = super().read_state(epoch)
            return OwnTarget() if isinstance(read_state, ForeignTarget) else read_state


class MakesWhatItLooksAt(JsonSink):
    """``raycdc check`` leaves a target behind."""

    def committed(self, target: TableId) -> CommitVector | None:
        document = load(self.folder)
        document.setdefault(str(target), {"rows": [], "record": [0, 0, 0]})
        save(self.folder, document)
        return super().committed(target)


class KnowsTargetsByNameAlone(JsonSink):
    """The record lies beside the target, and counts for whatever lies there."""

    class target_class(JsonTarget):  # noqa: N801
        def hold(self, commit_metadata: CommitMetadata) -> None:
            super().hold(commit_metadata)
            self.document.setdefault("records", {})[self.key] = self.document[self.key]["record"]

        def read_state(self, epoch: int | None = None) -> TargetState:
            record = self.document.get("records", {}).get(self.key)
            return (
                OwnTarget(CommitVector(*record)) if record and self.key in self.document else super().read_state(epoch)
            )


class LetsTheReplacedOneGoOn(JsonSink):
    """A pipeline finds its record in a target that another one replaced."""

    class target_class(JsonTarget):  # noqa: N801
        def hold(self, commit_metadata: CommitMetadata) -> None:
            super().hold(commit_metadata)
            records = self.document.setdefault("of pipelines", {})
            records[f"{self.app_id} {self.key}"] = self.document[self.key]["record"]

        def read_state(self, epoch: int | None = None) -> TargetState:
            record = self.document.get("of pipelines", {}).get(f"{self.app_id} {self.key}")
            return OwnTarget(CommitVector(*record)) if record else super().read_state(epoch)


class ForgetsTheDigest(JsonSink):
    """A driver with a copy of the state takes the epochs of the other one for its own."""

    class target_class(JsonTarget):  # noqa: N801
        def hold(self, commit_metadata: CommitMetadata) -> None:
            super().hold(commit_metadata)
            self.document[self.key]["record"][3] = 0


class ForgetsHowFarItWas(JsonSink):
    """An older copy that comes back under a running pipeline is written to as if nothing were missing."""

    class target_class(JsonTarget):  # noqa: N801
        remembers: ClassVar[bool] = False


class EndsForOneTable(JsonSink):
    """A target that takes a row no more ends the run of all tables."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            try:
                super().write(work, staged, step, commit_metadata)
            except ValueRefusedError as error:
                raise SinkError(str(error)) from error


class LosesRowsThatDoNotFit(JsonSink):
    """Rows that a target takes no more are left out in silence."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            try:
                super().write(work, staged, step, commit_metadata)
            except ValueRefusedError:
                self.hold(commit_metadata)


class WritesWhereItMayNot(JsonSink):
    """Rows that may not be written are left out in silence."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            try:
                super().write(work, staged, step, commit_metadata)
            except TargetModifiedError:
                self.hold(commit_metadata)


class WritesNothingAfterADeletion(JsonSink):
    """Changes of a target that has fewer rows than it had are left out in silence."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            if len(self.document[self.key]["rows"]) == 3:
                self.hold(commit_metadata)
            else:
                super().write(work, staged, step, commit_metadata)


class ParksForEveryTouch(JsonSink):
    """A target whose comment somebody changed is refused."""

    class target_class(JsonTarget):  # noqa: N801
        def write(self, work: TableCommit, staged: list[LinesFile], step: int, commit_metadata: CommitMetadata) -> None:
            if self.document[self.key].get("comment"):
                raise TargetModifiedError(f"{self.location} was touched.")
            super().write(work, staged, step, commit_metadata)


class MakesAgainWhatIsGone(JsonSink):
    """A target that is gone is made again, without the rows that it had."""

    class target_class(JsonTarget):  # noqa: N801
        def read_state(self, epoch: int | None = None) -> TargetState:
            if epoch is not None and epoch > 1:
                self.document.setdefault(
                    self.key, {"rows": [], "record": [epoch - 1, STEP_LAST, 1], "pipeline": self.app_id}
                )
            return super().read_state(epoch)


class EndsWhenItsStoreIsAway(JsonSink):
    """A store that is away for a moment ends the run."""

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[JsonTarget]:
        try:
            with super().opened(target, writes=writes) as handle:
                yield handle
        except SinkUnavailableError as error:
            raise SinkError(str(error)) from error


class BlamesTheTable(JsonSink):
    """A store that is away for a moment parks the table."""

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[JsonTarget]:
        try:
            with super().opened(target, writes=writes) as handle:
                yield handle
        except SinkUnavailableError as error:
            raise TargetDroppedError(str(error)) from error


#: Each fault, and the story that is there to find it.
FAULTS: dict[type[JsonSink], str] = {
    WritesTheRecordLater: "an_error_at_any_point_loses_and_doubles_nothing",
    NeverLooksAtTheRecord: "an_epoch_that_comes_again_changes_nothing",
    KnowsNoGenerations: "a_replaced_driver_writes_nothing",
    BarsNothing: "a_tombstone_bars_its_epoch",
    HidesRowsBehindATombstone: "a_tombstone_does_not_hide_rows",
    BelievesItself: "what_a_target_holds_is_read_from_the_target",
    MixesTwoTables: "every_change_is_there_once",
    OneRecordForAll: "what_a_target_holds_is_read_from_the_target",
    ForgetsDeletions: "every_change_is_there_once",
    LosesTheOrder: "every_change_is_there_once",
    LosesAddedColumns: "an_added_column_comes_with_its_values",
    SkipsEmptyEpochs: "an_epoch_without_rows_is_held",
    ShowsStagedRows: "staged_rows_are_not_seen",
    TakesWhatIsThere: "a_foreign_target_is_refused",
    MakesWhatItLooksAt: "looking_changes_nothing",
    KnowsTargetsByNameAlone: "a_recreated_target_is_refused",
    ForgetsTheDigest: "a_driver_with_a_copy_of_the_state_is_refused_at_its_first_commit",
    ForgetsHowFarItWas: "a_target_that_was_restored_from_an_older_copy_is_parked_alone",
    EndsForOneTable: "an_altered_target_that_rows_do_not_fit_is_parked_alone",
    LosesRowsThatDoNotFit: "an_altered_target_that_rows_do_not_fit_is_parked_alone",
    MakesAgainWhatIsGone: "a_renamed_target_is_parked_alone",
    EndsWhenItsStoreIsAway: "a_briefly_unreachable_store_is_waited_for",
    WritesWhereItMayNot: "a_target_that_may_not_be_written_any_more_is_parked_alone",
    WritesNothingAfterADeletion: "deleted_target_rows_are_noticed_or_later_changes_arrive",
    ParksForEveryTouch: "what_administrators_do_now_and_then_is_harmless",
    BlamesTheTable: "a_briefly_unreachable_store_is_waited_for",
    LetsTheReplacedOneGoOn: "a_pipeline_whose_targets_another_one_replaced_writes_no_more",
}


@pytest.mark.parametrize("faulty", FAULTS, ids=lambda faulty: faulty.__name__)
def test_a_planted_fault_is_found(faulty: type[JsonSink], tmp_path: Path) -> None:
    story = getattr(type("Suite", (Conformance,), {"sink_class": faulty})(), f"test_{FAULTS[faulty]}")
    assert fails(story, tmp_path), f"{faulty.__name__}: {faulty.__doc__}"


class OfNoHooks(Conformance):
    """Supplies none of what others may do, and says why of one alone."""

    impossible: ClassVar[Mapping[str, str]] = {"rename": "A document has no other name."}
    widen, alter, rename, back_up = SinkHooks.widen, SinkHooks.alter, SinkHooks.rename, SinkHooks.back_up
    maintain = SinkHooks.maintain
    erase = SinkHooks.erase
    revoke = SinkHooks.revoke  # type: ignore[assignment]
    unreachable = SinkHooks.unreachable  # type: ignore[assignment]


def test_a_hook_is_supplied_or_the_suite_says_why_nobody_can(tmp_path: Path) -> None:
    suite = OfNoHooks()
    with pytest.raises(SkipTest, match=r"^rename: A document has no other name\.$"):
        suite.test_a_renamed_target_is_parked_alone(tmp_path)
    for story, hook in (
        (suite.test_a_foreign_column_keeps_its_values, "widen"),
        (suite.test_a_target_that_was_restored_from_an_older_copy_is_parked_alone, "back_up"),
        (suite.test_an_altered_target_that_rows_do_not_fit_is_parked_alone, "alter"),
        (suite.test_deleted_target_rows_are_noticed_or_later_changes_arrive, "erase"),
        (suite.test_a_target_that_may_not_be_written_any_more_is_parked_alone, "revoke"),
        (suite.test_what_administrators_do_now_and_then_is_harmless, "maintain"),
        (suite.test_a_briefly_unreachable_store_is_waited_for, "unreachable"),
    ):
        with pytest.raises(AssertionError, match=f"supply `{hook}`, or say in `impossible` why nobody can do that"):
            story(tmp_path)


def fails(story: Callable[[Path], None], folder: Path) -> bool:
    try:
        story(folder)
    except SkipTest:
        return False
    except Exception:  # noqa: BLE001 - whatever it is, the fault was noticed
        return True
    return False
