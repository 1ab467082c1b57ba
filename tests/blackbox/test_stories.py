"""The stories of `stories_*.py` on each server into each sink: one run each, the other tables of it go on.

``pytest tests/blackbox/test_stories.py -k mariadb-delta-later-rename_column`` plays one alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox import stories_columns, stories_sessions, stories_tables, stories_types, stories_values
from tests.blackbox.player import Player, Report
from tests.blackbox.stages import target_of
from tests.blackbox.story import Mode, Server, Sink, Story

# The first test of a run plays all of it.
pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

STORIES = (
    *stories_columns.STORIES,
    *stories_types.STORIES,
    *stories_tables.STORIES,
    *stories_sessions.STORIES,
    *stories_values.STORIES,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A story on a server into a sink."""

    server: Server
    sink: Sink
    story: Story
    mode: Mode = Mode.LATER

    @property
    def stage(self) -> tuple[Server, Sink, Mode, str]:
        """Scenes of one stage share a run. What awaits its mending may end a run, and is played alone until then."""
        alone = self.story.alone or self.story.awaited(self.server, self.sink)
        return self.server, self.sink, self.mode, self.story.name if alone else ""


def runs() -> Iterator[tuple[Server, Sink, Mode]]:
    """What is played: all with the statements given while the pipeline stands still, the same under the default
    behaviour, and while it runs; one on Ray.
    """
    for server in Server:
        for sink in Sink:
            yield server, sink, Mode.LATER
            yield server, sink, Mode.LIVE
            yield server, sink, Mode.LENIENT
    yield Server.MARIADB, Sink.DELTA, Mode.CLUSTER


def scenes(stories: Sequence[Story]) -> list[object]:
    """The stories in each run whose server knows their statements."""
    return [
        scene(server, sink, mode, story)
        for server, sink, mode in runs()
        for story in stories
        if server in story.servers
        and not (mode is Mode.CLUSTER and (story.alone or story.awaited(server, sink)))
        and not (mode is Mode.LENIENT and story.alone)
    ]


def scene(server: Server, sink: Sink, mode: Mode, story: Story) -> object:
    marks = []
    twice = server is not Server.MARIADB and Server.MARIADB in story.servers
    if sink is not Sink.DELTA or mode is not Mode.LATER or twice or story.long:
        marks.append(pytest.mark.long(suite="blackbox"))
    if awaited := story.awaited(server, sink):
        marks.append(pytest.mark.xfail(strict=True, reason=awaited))
    return pytest.param(Scene(server, sink, story, mode), marks=marks, id=f"{server}-{sink}-{mode}-{story.name}")


class Theatre:
    """Plays the chosen stories of a stage when the first one is asked for."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._reports: dict[tuple[Server, Sink, Mode, str], Report | BaseException] = {}

    def report(self, scene: Scene) -> Report:
        """What came of the scene's run; the failure of the run itself is every story's."""
        if scene.stage not in self._reports:
            try:
                self._reports[scene.stage] = self._play(scene)
            except AssertionError as error:
                self._reports[scene.stage] = error
        report = self._reports[scene.stage]
        if isinstance(report, BaseException):
            raise report
        return report

    def _play(self, first: Scene) -> Report:
        items = [item for item in self._request.session.items if isinstance(item, pytest.Function)]
        played = [item.callspec.params.get("played") for item in items if hasattr(item, "callspec")]
        scenes = [scene for scene in played if isinstance(scene, Scene)]
        chosen = list(dict.fromkeys(scene.story.name for scene in scenes if scene.stage == first.stage))
        stories = [story for story in STORIES if story.name in chosen]
        server: DatabaseServer = self._request.getfixturevalue(first.server)
        folder = self._folder / "-".join(map(str, first.stage))
        with ExitStack() as stack:
            database = stack.enter_context(server.fresh_database("bb"))
            target = target_of(self._request, first.sink, folder / "target", stack)
            expected = {story.name: story.expected(first.server, first.sink, first.mode) for story in stories}
            return Player(server, target, folder, database, expected, first.sink, mode=first.mode).play(stories)


@pytest.fixture(scope="session")
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return Theatre(request, tmp_path_factory.mktemp("stories"))


@pytest.fixture
def played(request: pytest.FixtureRequest, theatre: Theatre) -> tuple[Scene, Report]:
    return request.param, theatre.report(request.param)


@pytest.mark.parametrize("played", scenes(STORIES), indirect=True)
def test_story(played: tuple[Scene, Report]) -> None:
    scene, report = played
    problems = report.problems.get(scene.story.name, [])
    if scene.stage[-1]:
        problems = [*problems, *report.problems.get("", [])]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("played", scenes(STORIES[:1]), indirect=True)
def test_the_healthy_table_goes_on_and_the_run_says_how_it_ended(played: tuple[Scene, Report]) -> None:
    _, report = played
    problems = report.problems.get("", [])
    assert not problems, "\n".join(problems)
