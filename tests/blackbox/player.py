"""Plays stories: all of a server and sink in one run, each beside the others and a healthy table that must go on.

The acts: the tables are made and read; the statements are given and followed; what is parked is mended as advised;
rows change once more. After each act every target is compared with its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import pymysql

from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox.command import Outcome, Pipeline
from tests.blackbox.compare import Printed, differences, print_table, untold
from tests.blackbox.story import (
    Absent,
    Again,
    Ends,
    Equal,
    Expectation,
    Gone,
    Kept,
    Mode,
    Parked,
    Sink,
    Story,
    Told,
    described,
)
from tests.blackbox.targets import Target

HEALTHY = "healthy"
#: With it targets have the source's columns.
EVOLVE = 'schema_change = "evolve"'


@dataclass(slots=True)
class Report:
    """What came of each story, by its name; of the run itself under ``""``."""

    problems: dict[str, list[str]] = field(default_factory=dict)

    def add(self, story: str, act: str, *problems: str) -> None:
        """Note what went wrong in an act."""
        self.problems.setdefault(story, []).extend(f"{act}: {problem}" for problem in problems)


@dataclass(slots=True)
class Player:
    """The stories of one server and sink. `mode` says what runs while the statements are given."""

    server: DatabaseServer
    target: Target
    folder: Path
    database: str
    expected: Mapping[str, Expectation]
    sink: Sink
    mode: Mode = Mode.LATER
    report: Report = field(default_factory=Report)
    _beats: int = 0
    #: Whether the stories' statements were given.
    _told: bool = False

    def play(self, stories: Sequence[Story]) -> Report:
        """Play all of them together; the report has what differs from the expectations."""
        default = "" if self.mode is Mode.LENIENT else EVOLVE
        toml = configuration(self.server, self.database, stories, self.target, stories[0].pipeline or default)
        pipeline = Pipeline(self.folder, toml, local=self.mode is not Mode.CLUSTER)
        self._sql(HEALTHY, [f"CREATE TABLE `{HEALTHY}` (id INT PRIMARY KEY, beat VARCHAR(80))"])
        for story in stories:
            self._sql(story.name, story.sql(story.setup))
        self._first(pipeline.run(), stories)
        outcomes = self._follow(pipeline, stories)
        if isinstance(self.expected[stories[0].name], Ends):
            outcomes = self._end(outcomes[0], pipeline, stories[0])
        self._second(outcomes, pipeline, stories)
        self._third(pipeline, stories)
        self._fourth(pipeline, stories)
        return self.report

    # -- the acts

    def _first(self, outcome: Outcome, stories: Sequence[Story]) -> None:
        self._ended(outcome, "snapshot")
        self._healthy("snapshot")
        for story in stories:
            self._compare(story, "snapshot")

    def _follow(self, pipeline: Pipeline, stories: Sequence[Story]) -> list[Outcome]:
        """The statements, and the runs that follow them."""

        def tell() -> None:
            for story in stories:
                touched = story.touch and story.sql(story.setup)
                before = ["DELETE FROM {t} WHERE id = 6", "UPDATE {t} SET id = 105 WHERE id = 5"] if touched else []
                self._sql(story.name, [*story.sql("\n".join(before)), *story.sql(story.statements)])
                if touched and not isinstance(self.expected[story.name], Gone | Kept | Absent):
                    self._sql(story.name, story.sql("UPDATE {t} SET id = 102 WHERE id = 2"))
                self._beat(story.name)
            self._told = True

        if self.mode is not Mode.LIVE:
            tell()
            return [pipeline.run()]
        goes_on = not isinstance(self.expected[stories[0].name], Ends)
        first = pipeline.live(until=_AllFollow(), meanwhile=tell, stopped=goes_on)
        return [first, pipeline.run()]

    def _end(self, outcome: Outcome, pipeline: Pipeline, story: Story) -> list[Outcome]:
        """The end that the configuration wants, and the run without it."""
        expectation = self.expected[story.name]
        assert isinstance(expectation, Ends)
        if outcome.code != expectation.code or expectation.word not in outcome.err or "Traceback" in outcome.said:
            self.report.add(story.name, "end", outcome.story())
        pipeline.toml = configuration(self.server, self.database, [story], self.target)
        self.expected = {story.name: expectation.then}
        return [pipeline.run()]

    def _second(self, outcomes: list[Outcome], pipeline: Pipeline, stories: Sequence[Story]) -> None:
        if self.mode is Mode.LIVE:
            self._ended(outcomes[0], "live")
        self._ended(outcomes[-1], "statements")
        self._healthy("statements")
        tables = pipeline.listed()
        began_again = {
            event["table"]
            for outcome in outcomes
            for event in outcome.events
            if event["event"] == "parked" and event["again"]
        }
        said = outcomes[-1].err
        for story in stories:
            self._judge(story, tables.get(f"{self.database}.{story.captured}"), began_again, said)

    def _third(self, pipeline: Pipeline, stories: Sequence[Story]) -> None:
        """The advised way out of each parked table."""
        parked = [story for story in stories if isinstance(self.expected[story.name], Parked)]
        for story in parked:
            expectation = self.expected[story.name]
            assert isinstance(expectation, Parked)
            self._sql(story.name, story.sql(expectation.mend))
            told = pipeline.tables(expectation.advice, f"{self.database}.{story.captured}")
            if told.code != 0:
                self.report.add(story.name, "way out", told.story())
        if parked:
            self._ended(pipeline.run(), "way out")
            self._healthy("way out")
            for story in parked:
                self._compare(story, "way out")

    def _fourth(self, pipeline: Pipeline, stories: Sequence[Story]) -> None:
        """Rows change once more, and all is as at the source."""
        for story in stories:
            if story.touch and not isinstance(self.expected[story.name], Gone | Kept | Absent):
                self._sql(story.name, story.sql("DELETE FROM {t} WHERE id = 4"))
                self._beat(story.name)
        self._ended(pipeline.run(), "afterwards")
        self._healthy("afterwards")
        for story in stories:
            if not isinstance(self.expected[story.name], Gone | Kept | Absent):
                self._compare(story, "afterwards")

    # -- judging

    def _judge(self, story: Story, listed: Mapping[str, Any] | None, began_again: set[str], said: str) -> None:
        """Whether a story's table is as expected after the statements."""
        expectation = self.expected[story.name]
        problems: list[str] = []
        phase = listed["phase"] if listed else "not listed"
        reason = str(listed["reason"]) if listed else ""
        match expectation:
            case Equal() | Again():
                if phase != "stream":
                    problems.append(f"it is {phase}: {reason}")
                problems += self._differences(story)
                if isinstance(expectation, Again) and self.target.emptied(self.database, story.captured) == 0:
                    problems.append("it did not begin again")
                # Of a table that is new to the pipeline nothing is read again.
                known = "{t}" in story.setup and isinstance(expectation, Again)
                if known and f"{self.database}.{story.captured}" not in began_again:
                    problems.append("it began again without a word")
                if isinstance(expectation, Equal) and f"{self.database}.{story.captured}" in began_again:
                    problems.append("it began again")
                if expectation == Equal(whole=True) and self.target.emptied(self.database, story.captured):
                    problems.append("its changelog does not begin where the table does")
            case Told():
                problems += self._untold(story)
            case Parked(word=word, advice=advice):
                if phase != "parked" or word not in reason:
                    problems.append(f"it is {phase}: {reason}")
                elif f"raycdc tables {advice}" not in said or f"{self.database}.{story.captured}" not in said:
                    problems.append(f"the run does not advise `raycdc tables {advice}` for it")
            case Ends():
                problems.append("the run went on")
            case Gone():
                held, wrong = self.target.read(self.database, story.captured, ("id",))
                problems += wrong
                problems += [f"it holds {held.rows}"] if held is not None and held.rows else []
            case Kept(rows=rows):
                held, wrong = self.target.read(self.database, story.captured, ("id",))
                problems += wrong
                problems += [f"it holds {held}"] if held is None or len(held.rows) != rows else []
            case Absent():
                held, _ = self.target.read(self.database, story.captured, ("id",))
                problems += [f"it holds {held.rows}"] if held is not None else []
                problems += [f"it is {phase}: {reason}"] if listed and phase != "ended" else []
            case _:
                assert_never(expectation)
        if problems:
            self.report.add(story.name, f"statements, expected {described(expectation)}", *problems)

    def _compare(self, story: Story, act: str) -> None:
        told = isinstance(self.expected[story.name], Told) and act == "afterwards"
        self.report.add(story.name, act, *(self._untold(story) if told else self._differences(story)))

    def _untold(self, story: Story) -> list[str]:
        with self.server.connect() as connection:
            source = print_table(connection, self.database, story.captured)
        held, _ = self.target.read(self.database, story.captured, story.key)
        assert source is not None
        return ["there is no target"] if held is None else untold(source, held, story.key)

    def _differences(self, story: Story) -> list[str]:
        return self._differing(story.captured, story.key, lambda source: self._wanted(source, story))

    def _wanted(self, source: Printed, story: Story) -> Printed:
        """What the target must have where the source has this: under "lenient" that may be more columns."""
        lenient = story.lenient
        if self.mode is Mode.LENIENT and self._told and self.sink in lenient.sinks:
            for name, (kind, values) in lenient.stays.items():
                source = source.with_column(name, kind, values)
        return source.renamed(story.renamed.get(self.sink, {}))

    def _differing(
        self, table: str, key: Sequence[str], wanted: Callable[[Printed], Printed] | None = None
    ) -> list[str]:
        with self.server.connect() as connection:
            source = print_table(connection, self.database, table)
        held, problems = self.target.read(self.database, table, key)
        if source is None:
            return problems
        if held is None:
            # A changelog without a row has no file.
            return problems if not source.rows else [*problems, "there is no target"]
        return problems + differences(source if wanted is None else wanted(source), held)

    def _healthy(self, act: str) -> None:
        self.report.add("", act, *self._differing(HEALTHY, ("id",)))

    def _ended(self, outcome: Outcome, act: str) -> None:
        """A run ends with 4 where a table is parked, else with 0; one that ended otherwise has no story to tell."""
        if outcome.code not in (0, 4) or "Traceback" in outcome.said:
            raise AssertionError(f"{act}: {outcome.story()}")
        parked = [
            event["table"]
            for event in outcome.events
            if event["event"] == "parked" and event["phase"] == "parked" and not event["again"]
        ]
        if "caught-up" in outcome.arguments and (outcome.code == 4) != bool(parked):
            self.report.add("", act, f"parked are {parked}: {outcome.story()}")

    # -- the source

    def _beat(self, story: str) -> None:
        """A row of the healthy table."""
        self._beats += 1
        self._sql("", [f"INSERT INTO `{HEALTHY}` VALUES ({self._beats}, 'after {story}')"])

    def _sql(self, story: str, statements: Sequence[str]) -> None:
        """Give statements in one session; one that fails is the story's fault."""
        with self.server.connect(database=self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except pymysql.Error as error:
                    self.report.add(story, "SQL", f"{statement}: {error}")
                    return


def configuration(
    server: DatabaseServer, database: str, stories: Sequence[Story], target: Target, pipeline: str = EVOLVE
) -> str:
    """The configuration of all stories' tables and the healthy one."""
    names = [rf"{database}\.s_.*", f"{database}.{HEALTHY}"]
    names += [rf"{database}\.{story.pattern}" for story in stories if story.pattern]
    tables = ", ".join(f"'{name}'" for name in names)
    return f"""
[pipeline]
name = "stories"
state = "state"
{pipeline}
epoch_interval = "300ms"
engines = "always"

[source]
type = "mysql"
host = "{server.host}"
port = {server.port}
user = "cdc"
password = "${{env:SOURCE_PASSWORD}}"
tables = [{tables}]

[sink]
{target.toml}
"""


class _AllFollow:
    """Whether the events so far say that every table's snapshot is over; a line has the tables with news."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}

    def __call__(self, event: Mapping[str, Any]) -> bool:
        if event["event"] != "progress":
            return False
        self._phases.update((table["table"], table["phase"]) for table in event["tables"])
        return bool(self._phases) and all(phase == "stream" for phase in self._phases.values())
