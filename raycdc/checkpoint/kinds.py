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


#: Documents of the driver's own (`raycdc.checkpoint.documents`), as they are called in a state of whatever version.
DOCUMENTS = frozenset(
    {"requests.json", "configured.json", "names.json", "changelog.json", "bad_rows.json", "retyped.json"}
    | {"datasource.json"}
)


def _document(name: str, *, rows: bool = True) -> Kind:
    """A document of the driver's own, in a state of an older version and in one of this."""
    assert name in DOCUMENTS
    return Kind(rf"({re.escape(name)}|documents/{re.escape(name)}\.\d{{10}})", rows)


#: By a name for people.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "meta": Kind(r"meta\.json", rows=False),
        "lease": Kind(r"lease", rows=False),
        "generation": Kind(r"gen|generations/\d{10}(\.pulse|\.epochs)?\.json"),
        "documents taken over": Kind(r"generations/\d{10}\.documents\.json"),
        "manifests": Kind(r"epochs/\d{10}\.json(\.dropped)?|bases/\d{10}\.jsonl"),
        "commits": Kind(r"commits/\d{10}\.json(\.\d{10})?|bases/record-\d{10}-\d{10}-[0-9a-f]{64}\.json"),
        "schemas": Kind(r"schemas/[0-9a-f]+\.json"),
        "requests": _document("requests.json"),
        "configured": _document("configured.json"),
        "column names": _document("names.json"),
        "changelog": _document("changelog.json", rows=False),
        "bad rows": _document("bad_rows.json"),
        "retyped targets": _document("retyped.json", rows=False),
        "commands": Kind(r"commands/[0-9a-z]{8,64}\.json", rows=False),
        "dead letters": Kind(r"dead_letters/.+\.jsonl(\..+)?"),
        "segments": Kind(r"spool/.+"),
        "derived segments": Kind(r"derived/.+"),
        "looked up": Kind(r"looked_up/.+"),
        "known rows": Kind(r"known/.+"),
        "exact changes": Kind(r"exact/.+"),
        "spark": Kind(r"spark/.+"),
        "notifications sent": Kind(r"notified\.json", rows=False),
        "private": Kind(r"private/.+", rows=False),
        "data source": _document("datasource.json"),
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
