"""The lists of commands in ``--help``: one whole line per command, in a terminal of 80 columns."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from raycdc.cli.app import app
from raycdc.cli.commands.groups import inspect, state, tables

GROUPS = [([], app), (["inspect"], inspect), (["tables"], tables), (["state"], state)]


@pytest.mark.parametrize(("words", "group"), GROUPS, ids=["raycdc", "inspect", "tables", "state"])
def test_each_command_has_a_line_that_is_whole(words: list[str], group: typer.Typer) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}, terminal_width=80)
    _, _, listed = shown.output.partition("Commands:\n")
    lines = listed.strip("\n").splitlines()
    assert len(lines) == len(group.registered_commands) + len(group.registered_groups)
    assert not [line for line in lines if not line.endswith(".") or line.endswith("...")]
