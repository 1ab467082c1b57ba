"""Every kind of file that the folder of a state may have, and what stands in it. Nothing else may be put there.

`CheckpointStore` refuses to write a document of another name, and the sweep for what masks hide
(``tests/leaks.py``) finds every other file that is of none of these kinds, and every kind that no test has looked into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Kind(NamedTuple):
    """Files whose name below the state's folder `pattern` matches in full. `rows`: what is made of rows, or quotes
    them, may stand in it; otherwise names, numbers, and what the configuration says.
    """

    pattern: str
    rows: bool = True


#: By a name for people.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "meta": Kind(r"meta\.json", rows=False),
        "lease": Kind(r"lease", rows=False),
        "generation": Kind(r"gen|generations/\d{10}(\.pulse|\.epochs)?\.json", rows=False),
        "manifests": Kind(r"epochs/\d{10}\.json(\.dropped)?|bases/\d{10}\.jsonl"),
        "commits": Kind(r"commits/\d{10}\.json(\.\d{10})?"),
        "schemas": Kind(r"schemas/[0-9a-f]+\.json"),
        "requests": Kind(r"requests\.json"),
        "commands": Kind(r"commands/[0-9a-z]{8,64}\.json", rows=False),
        "configured": Kind(r"configured\.json"),
        "column names": Kind(r"names\.json"),
        "changelog": Kind(r"changelog\.json", rows=False),
        "bad rows": Kind(r"bad_rows\.json"),
        "retyped targets": Kind(r"retyped\.json", rows=False),
        "dead letters": Kind(r"dead_letters/.+\.jsonl(\..+)?"),
        "segments": Kind(r"spool/.+"),
        "derived segments": Kind(r"derived/.+"),
        "looked up": Kind(r"looked_up/.+"),
        "known rows": Kind(r"known/.+"),
        "exact changes": Kind(r"exact/.+"),
        "spark": Kind(r"spark/.+"),
        "private": Kind(r"private/.+", rows=False),
        "data source": Kind(r"datasource\.json"),
    }
)
#: A document whose write was interrupted has the name of the finished one in its own.
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")


def kind_of(name: str) -> str:
    """The kind of a file by its name below the state's folder; empty where there is none."""
    folder, _, last = name.rpartition("/")
    unfinished = _UNFINISHED.fullmatch(last)
    if unfinished is not None:
        name = f"{folder}/{unfinished[1]}" if folder else unfinished[1]
    return next((kind for kind, one in KINDS.items() if re.fullmatch(one.pattern, name)), "")
