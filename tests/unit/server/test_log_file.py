"""The log file of a run: a line per event, as the schema says, and what libraries log without their noise."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from raycdc.config.sections.observability import LoggingOptions
from raycdc.errors import SinkError
from raycdc.observe.events import CaughtUp, Listeners, RunEvent, SchemaChanged, Starting, Warned
from raycdc.observe.events.lines import check_line
from raycdc.observe.events.log_file import LogFile, _Appended

EVENTS = (Starting("starting"), SchemaChanged("a.b", "a.b", 3, ("add_column it is",)), Warned("two\nlines"), CaughtUp())


def written(path: Path, level: str = "info", form: str = "json", error: Exception | None = None) -> list[str]:
    options = LoggingOptions.model_validate({"file": str(path), "level": level, "format": form})
    log = LogFile(options, "shop")
    with log.writing():
        for event in EVENTS:
            log.listen(event)
        for at in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger("library").log(at, "said %s", "so")
        if error is not None:
            log.failed(error)
            log.failed(error)
    return own(path)


def own(path: Path) -> list[str]:
    """The lines without those of other threads' libraries."""
    lines = path.read_text().splitlines()
    return [line for line in lines if ('"logger":' not in line and "logger=" not in line) or "library" in line]


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        ("debug", ["starting", "schema_changed", "warning", "caught_up", "log", "log", "error"]),
        ("info", ["schema_changed", "warning", "caught_up", "log", "error"]),
        ("warning", ["warning", "log", "error"]),
        ("error", ["error"]),
    ],
)
def test_what_is_written_is_the_levels_choice_and_each_line_is_as_the_schema_says(
    tmp_path: Path, level: str, kinds: list[str]
) -> None:
    root = logging.getLogger()
    before = root.level, [(each, each.level) for each in root.handlers]
    lines = written(tmp_path / "log", level, error=SinkError("away"))
    assert (root.level, [(each, each.level) for each in root.handlers]) == before
    for line in lines:
        check_line(line)
    assert [json.loads(line)["event"] for line in lines] == kinds
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_line_of_text_is_one_line_whatever_stands_in_it(tmp_path: Path) -> None:
    lines = [line.partition(" ")[2] for line in written(tmp_path / "log", form="text")]
    assert lines == [
        'INFO shop schema_changed table=a.b target=a.b epoch=3 changes="[\\"add_column it is\\"]"',
        'WARNING shop warning text="two\\nlines"',
        "INFO shop caught_up rows_read_by={} rows_written_by={}",
        'WARNING shop log logger=library text="said so"',
    ]


def test_another_file_at_its_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(LoggingOptions(file=str(path)), "shop")
    with log.writing():
        log.listen(CaughtUp())
        path.rename(tmp_path / "log.1")
        log.listen(CaughtUp())
    assert [len(own(tmp_path / name)) for name in ("log", "log.1")] == [1, 1]


def test_a_file_that_cannot_be_written_is_told_of_once_and_holds_nothing_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogFile(LoggingOptions(file=str(tmp_path / "gone" / "log")), "shop")
    with log.writing():
        for event in EVENTS:
            log.listen(event)
    assert capsys.readouterr().err.count("cannot be written to") == 1


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_is_no_log_whether_somebody_reads_it_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_read: bool
) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if is_read else None
    log = LogFile(LoggingOptions(file=str(pipe)), "shop")

    def write() -> None:
        with log.writing():
            for event in EVENTS:
                log.listen(event)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
    assert capsys.readouterr().err.count("cannot be written to") == 1
    if reader is not None:
        os.close(reader)


def test_a_run_goes_on_where_standard_error_is_gone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    heard: list[RunEvent] = []
    log = LogFile(LoggingOptions(file=str(tmp_path / "gone" / "log")), "shop")
    Listeners({"log file": log.listen, "test": heard.append}).notify(CaughtUp())
    assert heard == [CaughtUp()]


def test_what_logs_while_a_line_is_added_holds_nothing_up(tmp_path: Path) -> None:
    class Logs(type(Path())):  # type: ignore[misc]
        said = False

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            if not Logs.said:
                Logs.said = True
                file.add("within")
            return super().stat(follow_symlinks=follow_symlinks)  # type: ignore[no-any-return]

    file = _Appended(Logs(tmp_path / "log"))

    def write() -> None:
        for line in ("first", "second"):
            file.add(line)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(60)
    assert (tmp_path / "log").read_text().splitlines() == ["first", "within", "second"]
