"""Tables that a configuration which is about to be written cannot take, asked in the words of ``raycdc check``."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raycdc.cli.schemas import known_source, table_findings, table_of
from raycdc.config import config_from_dict
from raycdc.config.init_page import InitPage, secret_in, toml_list, toml_text
from raycdc.errors import ConfigError, RaycdcError
from raycdc.model.selector import plain_name
from raycdc.printable import printable

#: A variable without a default.
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
#: Characters of a reason in a line of its own.
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """The tables that a run would park, with the reason of each; `problem` is why nobody could say."""

    refused: Mapping[str, str] = field(default_factory=dict)
    tables: int = 0
    problem: str = ""


def judge(text: str, *, password_variable: str = "") -> Judged:
    """What `text`, a whole configuration, makes of its source's tables. Connects to the source, changes nothing."""
    environment = dict(os.environ)
    for variable in _VARIABLE.findall(text):
        # A secret that somebody typed in a moment ago; no other is needed to know the tables.
        known = secret_in(variable).reveal() if variable == password_variable else ""
        environment.setdefault(variable, known)
    try:
        config = config_from_dict(tomllib.loads(text), environment=environment)
    except ConfigError:
        return Judged()  # For want of a secret of the sink, or because `check` will say what is wrong.
    try:
        schemas = {table: found.schema for table, found in known_source(config).tables().items()}
        findings = [finding for finding in table_findings(config, schemas) if finding.parks]
    except RaycdcError as error:
        return Judged(problem=str(error))
    refused = {plain_name(table_of(finding)): finding.text for finding in findings}
    return Judged(refused, len(schemas))


def without(section: Sequence[str], page: InitPage, chosen: Sequence[str], refused: Mapping[str, str]) -> list[str]:
    """The lines of ``[source]`` with the `refused` tables in comments, each below its reason."""
    listed = f"{page.chosen} = {toml_list(chosen)}"
    marked = {name: why for name, why in refused.items() if name in chosen}
    others = {name: why for name, why in refused.items() if name not in chosen}
    if not refused or listed not in section:
        return list(section)
    lines: list[str] = []
    for line in section:
        if line == listed and marked:
            lines.append(f"{page.chosen} = [")
            for name in chosen:
                lines += _reason("  ", marked[name]) if name in marked else []
                lines.append(f"  {'# ' if name in marked else ''}{toml_text(name)},")
            lines.append("]")
        elif line.startswith("# exclude = ") and others:
            lines += [line for name, why in others.items() for line in _reason("", named(name, why))]
            lines.append(f"exclude = {toml_list(tuple(others))}")
        else:
            lines.append(line)
    return lines


def named(name: str, why: str) -> str:
    """A reason that names its table."""
    return why if why.startswith(name) else f"{name}: {why}"


def _reason(indent: str, text: str) -> list[str]:
    lines = [f"{indent}#"]
    for word in printable(text).split():
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append(f"{indent}#")
        lines[-1] += f" {word}"
    return lines
