"""A start asks each question once, of the source, the state and the sink; `check` and a run ask the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.planning.check import check_config
from raycdc.cli.planning.plan import plan_config
from raycdc.config import load_config
from raycdc.connectors.datagen.source import DatagenSource
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import LogLostError, RaycdcError, SourceError
from raycdc.model import TableId
from raycdc.pipeline import Pipeline
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.source.connector import Restart
from raycdc.source.selection import TableSelection
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.parking import Refusal
from raycdc.state.documents import REQUESTS
from raycdc.state.store import CheckpointStore

CONFIG = """
[pipeline]
name = "asked"
state = "state"
{pipeline}
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 10
events = 0
[sink]
type = "delta"
path = "lake"
[control]
enabled = false
"""
#: The questions that a start may ask of a source, and those that the commands ask of a sink.
QUESTIONS = ("selection", "check", "preflight", "restart", "tables", "has_before_images", "unfollowable")
OF_SINKS = ("check", "inspect", "open")


class Asked:
    """Counts questions, by ``source.NAME``, ``sink.NAME`` and ``state``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.counts: Counter[str] = Counter()
        for kind, page, names in (("source", DatagenSource, QUESTIONS), ("sink", DeltaSink, OF_SINKS)):
            for name in names:
                self._count(page, name, f"{kind}.{name}")
        self._count(CheckpointStore, "last_manifest", "state")

    def _count(self, page: type[Any], name: str, what: str) -> None:
        ask = getattr(page, name)

        def counted(*args: Any, **more: Any) -> Any:
            self.counts[what] += 1
            return ask(*args, **more)

        self._monkeypatch.setattr(page, name, counted)

    def by(self, command: Callable[[], object]) -> dict[str, int]:
        """The questions of `command`."""
        self.counts.clear()
        command()
        return {what: count for what, count in self.counts.items() if what != "state"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "asked.toml"
    path.write_text(CONFIG.format(pipeline=""))
    return path


def run(path: Path) -> None:
    Pipeline.from_config(load_config(path)).run(until="caught-up", local=True)


def check(path: Path) -> int:
    return check_config(path, as_json=False, local=True)


def test_no_question_is_asked_twice_of_source_or_sink(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    of_start = {"source.selection": 1, "source.preflight": 1}
    looked = {"source.check": 1, "source.tables": 1, "sink.check": 1, "sink.inspect": 1}
    assert asked.by(lambda: check(path)) == {**of_start, **looked}
    assert asked.by(lambda: plan_config(path, as_json=False)) == {"source.tables": 1}
    # What opens a sink looks at it.
    assert asked.by(lambda: run(path)) == {**of_start, "sink.open": 1, "sink.inspect": 1}
    of_start["source.unfollowable"] = 1
    assert asked.by(lambda: check(path)) == {**of_start, **looked}
    assert asked.by(lambda: plan_config(path, as_json=False)) == {"source.tables": 1}
    assert asked.by(lambda: run(path)) == {**of_start, "sink.open": 1, "sink.inspect": 1}


def test_a_run_is_resolved_once_for_each_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ResolvedRun] = []
    make = ResolvedRun.__init__

    def noted(self: ResolvedRun, *args: Any, **more: Any) -> None:
        made.append(self)
        make(self, *args, **more)

    monkeypatch.setattr(ResolvedRun, "__init__", noted)
    commands: list[Callable[[], object]] = [
        lambda: check(path),
        lambda: plan_config(path, as_json=False),
        lambda: run(path),
    ]
    for command in commands * 2:
        made.clear()
        command()
        assert len(made) == 1


ORDERS = TableId("shop", "orders")
AGAIN = 'on_log_lost = "resnapshot"'


def raises(error: RaycdcError) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        raise error

    return answer


def misspelt(source: DatagenSource) -> TableSelection:
    return TableSelection("source.tables", (ORDERS,), (ORDERS,), (ORDERS, TableId("shop", "ordres")))


def unfollowable(source: DatagenSource, stream: Any) -> list[Refusal]:
    state = stream.followed[ORDERS]
    return [Refusal(ORDERS, state.incarnation, "shop.orders was rewritten without being logged.", stream.position, 0)]


def elsewhere(folder: Path) -> None:
    (folder / "lake").rename(folder / "away")


def renamed(folder: Path) -> None:
    path = folder / "asked.toml"
    path.write_text(path.read_text().replace('name = "asked"', 'name = "other"'))


def seeded(folder: Path) -> None:
    path = folder / "asked.toml"
    path.write_text(path.read_text().replace("rows = 10", "rows = 10\nseed = 7"))


def state_in_a_file(folder: Path) -> None:
    (folder / "taken").write_text("")
    path = folder / "asked.toml"
    path.write_text(path.read_text().replace('state = "state"', 'state = "taken/state"'))


def nothing(folder: Path) -> None:
    """The answers of the source are all that is wrong."""


@dataclass(frozen=True)
class Case:
    """A start behind a run, or a first one, that is refused with `code` and `text`: because of `answers` of the source,
    or of what somebody `did` to files.
    """

    code: int
    text: str
    answers: dict[str, Any] = field(default_factory=dict)
    did: Callable[[Path], None] = nothing
    pipeline: str = ""
    first: bool = False


LOST = raises(LogLostError("The log is purged."))
REFUSALS = {
    "a name that is nobody's": Case(3, "there is no table shop.ordres", {"selection": misspelt}),
    "the same at a first start": Case(3, "there is no table shop.ordres", {"selection": misspelt}, first=True),
    "a source that lacks something": Case(
        3, "row images are off", {"preflight": raises(SourceError("row images are off"))}
    ),
    "a log that is lost": Case(3, "The log is purged.", {"preflight": LOST}),
    "a lost log that cannot be begun again": Case(
        3, "The log is purged.", {"preflight": LOST, "restart": lambda *_: None}, pipeline=AGAIN
    ),
    "a lost log of another server": Case(
        3,
        "another server answers",
        {"preflight": LOST, "restart": raises(LogLostError("another server answers"))},
        pipeline=AGAIN,
    ),
    "a lost log of a first start": Case(3, "The log is purged.", {"preflight": LOST}, pipeline=AGAIN, first=True),
    "a table that is followed no further": Case(
        4, "was rewritten without being logged", {"unfollowable": unfollowable}, pipeline='on_table_error = "fail"'
    ),
    "the same behind a lost log": Case(
        4,
        "was rewritten without being logged",
        {"preflight": LOST, "unfollowable": unfollowable},
        pipeline=f'{AGAIN}\non_table_error = "fail"',
    ),
    "another source": Case(2, "source.seed is", did=seeded),
    "the state of another pipeline": Case(6, "belongs to pipeline 'asked', not 'other'", did=renamed),
    "a state that cannot be written": Case(6, "taken is a file", did=state_in_a_file),
    "a target that is gone": Case(5, "holds nothing of this pipeline", did=elsewhere),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_check_refuses_what_a_run_refuses_and_neither_changes_the_state(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = REFUSALS[name]
    if not case.first:
        run(path)
    path.write_text(CONFIG.format(pipeline=case.pipeline))
    case.did(path.parent)
    for question, answer in case.answers.items():
        monkeypatch.setattr(DatagenSource, question, answer)
    documents = documents_of(path.parent)
    capsys.readouterr()
    assert check(path) == case.code
    said = capsys.readouterr().out
    assert case.text in said
    with pytest.raises(RaycdcError) as refused:
        run(path)
    assert int(refused.value.exit_code) == case.code
    assert case.text in str(refused.value)
    # `check` has a line for what is wrong, and one for what is to be done.
    assert all(line in " ".join(said.split()) for line in str(refused.value).splitlines())
    assert documents_of(path.parent) == documents


def documents_of(folder: Path) -> dict[str, bytes]:
    """What a start decides, as the state has it: requests, the configuration, the changelog."""
    names = (REQUESTS, "configured.json", "changelog.json")
    return {name: (folder / "state" / name).read_bytes() for name in names if (folder / "state" / name).exists()}


def test_tables_of_a_lost_log_are_read_again_as_check_foresaw(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path)
    path.write_text(CONFIG.format(pipeline=AGAIN))
    last = CheckpointStore(path.parent / "state").last_manifest()
    state = stream_of(last)
    assert state is not None
    monkeypatch.setattr(DatagenSource, "preflight", LOST)
    monkeypatch.setattr(DatagenSource, "restart", lambda *_: Restart(state.position, state.ordinal, ["shop.orders"]))
    capsys.readouterr()
    assert check(path) == 0
    assert "warning  The log is purged.\n         All tables are read again, as pipeline.on_log_lost says." in (
        capsys.readouterr().out
    )
    run(path)
    again = stream_of(CheckpointStore(path.parent / "state").last_manifest())
    assert again is not None
    assert again.followed[ORDERS].incarnation > state.followed[ORDERS].incarnation
