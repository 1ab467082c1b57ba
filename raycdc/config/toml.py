"""TOML as it is read: values of a known kind, which only the loader and validators of sections look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import TypeAlias

TomlValue: TypeAlias = "str | int | float | bool | date | time | Sequence[TomlValue] | Mapping[str, TomlValue]"
TomlTable: TypeAlias = Mapping[str, TomlValue]
