"""Whether somebody's collection may take a pipeline's rows: nothing of it may lose, change or merge them in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.mongodb.types import ID

#: Options of a collection that change what a key is, or what becomes of documents.
_OPTIONS = {
    "collation": "compares texts by a collation, which may take different keys of the source for one",
    "capped": "is capped, and drops its oldest documents",
    "timeseries": "is a time series, whose documents have no keys of their own",
    "clusteredIndex": "is clustered, with limits on its keys",
    "expireAfterSeconds": "drops its documents after a while",
}


def check_collection(target: TableId, described: Mapping[str, Any], where: str) -> None:
    """`SinkError` for a view, and for a collection with options that no target may have."""
    options = described.get("options") or {}
    what = next((text for name, text in _OPTIONS.items() if options.get(name)), None)
    if described.get("type", "collection") not in ("collection", "timeseries"):
        what = "is a view"
    if what:
        raise SinkError(f"{target} exists in {where} and {what}. Choose another target.")


def check_keys(collection: Any, target: TableId, key: Sequence[str], where: str) -> None:
    """`SinkError` where a document's ``_id`` is not the key that this pipeline would find it by."""
    pairs = [[f"${ID}", f"${key[0]}"]] if len(key) == 1 else [[f"${ID}.{name}", f"${name}"] for name in key]
    if key == (ID,):
        return
    found = collection.find_one({"$or": [{"$expr": {"$ne": pair}} for pair in pairs]}, {ID: 1})
    if found is not None:
        columns = key[0] if len(key) == 1 else "{" + ", ".join(key) + "}"
        raise SinkError(
            f"{target} exists in {where} and has a document whose {ID} ({found[ID]!r:.100}) is not its {columns}, by "
            "which rows are found. Choose another target."
        )
