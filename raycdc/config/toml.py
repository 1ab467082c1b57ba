"""TOML as it is read: values of a known kind, which only the loader and validators of sections look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import TypeAlias

TomlValue: TypeAlias = "str | int | float | bool | date | time | Sequence[TomlValue] | Mapping[str, TomlValue]"
TomlTable: TypeAlias = Mapping[str, TomlValue]


def section_of(document: TomlTable, name: str) -> dict[str, TomlValue]:
    """A copy of a section that may be changed; empty where there is none, or something else has its name."""
    section = document.get(name)
    return dict(section) if isinstance(section, Mapping) else {}


def texts_of(section: TomlTable, name: str) -> tuple[str, ...]:
    """The texts that are listed under `name`, or the one that stands there alone."""
    texts = section.get(name, ())
    if isinstance(texts, str):
        return (texts,)
    return tuple(map(str, texts)) if isinstance(texts, Sequence) else ()
