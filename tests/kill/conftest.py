"""What the kill tests print at their end: one line per story, which is the table of `raycdc docs tests`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Stories with how many seeds of each were played and passed, how often something was killed, and how long."""
    stories: dict[str, list[pytest.TestReport]] = defaultdict(list)
    for report in _calls(terminalreporter):
        stories[_story(report.nodeid)].append(report)
    figures = any(name == "figures" for each in stories.values() for one in each for name, _ in one.user_properties)
    if sum(map(len, stories.values())) <= len(stories) and not figures:
        return
    terminalreporter.section("kill tests")
    terminalreporter.write_line("| story | seeds | equal afterwards | killed or stopped | seconds a seed |")
    terminalreporter.write_line("|---|---|---|---|---|")
    for story, reports in stories.items():
        passed = sum(report.passed for report in reports)
        kills = sum(
            value
            for report in reports
            for name, value in report.user_properties
            if name == "kills" and isinstance(value, int)
        )
        seconds = sum(report.duration for report in reports) / len(reports)
        terminalreporter.write_line(f"| {story} | {len(reports)} | {passed} | {kills} times | {seconds:.0f} |")
    for story, reports in stories.items():
        for text in (value for report in reports for name, value in report.user_properties if name == "figures"):
            terminalreporter.write_line(f"{story}: {text}")


def _calls(reporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    for outcome in ("passed", "failed"):
        for report in reporter.stats.get(outcome, []):
            if report.when == "call" and "/kill/" in report.nodeid:
                yield report


def _story(nodeid: str) -> str:
    name, _, parameters = nodeid.rpartition("::")[2].removeprefix("test_").partition("[")
    phase = [part for part in parameters.rstrip("]").split("-") if not part.isdigit()]
    return " ".join([name.replace("_", " "), *(f"({part})" for part in phase)])
