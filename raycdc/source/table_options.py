"""Options of a source's section that are about single tables, by the tables' names. Pure.

A table's option is a mistake where the section does not select the table, and its value is judged by itself. Both are
found when the configuration is read, so that all of them are told at once; whether the table is there, and has the
columns that an option names, only the source knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from raycdc.model import TableId
from raycdc.source.startup import SelectedTablesConfig

ValueT = TypeVar("ValueT")


def require_selected(section: SelectedTablesConfig, options: Mapping[str, Iterable[str]], *, noun: str) -> None:
    """Raises ValueError for a table that has an option and is not selected. `options` has the tables' names by key.

    `noun` is what people call a table.
    """
    for key, names in options.items():
        for name in names:
            if not section.captures(TableId.parse(name)):
                raise ValueError(f"{key}: {name} {not_captured(noun)}")


def not_captured(noun: str) -> str:
    """The end of a sentence about a table that has an option."""
    return f"is not one of the captured {noun}s"


def checked(values: Mapping[str, ValueT], check: Callable[[ValueT], object]) -> None:
    """Judge the value of each table by `check`, whose ValueError is raised with the table's name before it."""
    for name, value in values.items():
        try:
            check(value)
        except ValueError as cause:
            raise ValueError(f"{name}: {cause}") from cause
