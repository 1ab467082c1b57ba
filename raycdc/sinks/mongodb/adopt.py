"""Whether somebody's collection may take a pipeline's rows: nothing of it may lose, change or merge them in silence."""

from __future__ import annotations

from typing import Any

from bson.binary import UUID_SUBTYPE, Binary

from raycdc.errors import TargetTakenError
from raycdc.model import TableId, TableSchema
from raycdc.sinks.mongodb.server import Described, Document
from raycdc.sinks.mongodb.types import ID, Form, form_of, key_pattern, subtype_of

#: Options of a collection that change what a key is, or what becomes of documents.
_OPTIONS = {
    "collation": "compares texts by a collation, which may take different keys of the source for one",
    "capped": "is capped, and drops its oldest documents",
    "timeseries": "is a time series, whose documents have no keys of their own",
    "clusteredIndex": "is clustered, with limits on its keys",
    "expireAfterSeconds": "drops its documents after a while",
}


def check_collection(target: TableId, described: Described, where: str) -> None:
    """`SinkError` for a view, and for a collection with options that no target may have."""
    what = next((text for name, text in _OPTIONS.items() if name in described.options), None)
    if described.kind not in ("collection", "timeseries"):
        what = "is a view"
    if what:
        raise TargetTakenError(f"{target} exists in {where} and {what}. Choose another target.")


def check_keys(collection: Any, target: TableId, schema: TableSchema, where: str) -> None:
    """`SinkError` where a document's ``_id`` is not the key that this pipeline would find it by, or is of another type:
    the same value would come a second time.
    """
    key = schema.primary_key
    if key != (ID,):
        whole: Any = f"${key[0]}" if len(key) == 1 else {name: f"${name}" for name in key}
        columns = key[0] if len(key) == 1 else "{" + ", ".join(key) + "}"
        document = collection.find_one({"$expr": {"$ne": [f"${ID}", whole]}}, {ID: 1})
        _refuse(document, target, where, f"is not its {columns}, by which rows are found")
    for name in key:
        field = ID if len(key) == 1 else f"{ID}.{name}"
        logical = schema.column(name).type
        form = form_of(logical)
        if form is Form.VALUE:
            continue
        wanted: Document = {"$type": list(_TYPES.get(form, (form.bson,)))}
        if (pattern := key_pattern(logical)) is not None:
            wanted = {"$regex": pattern}
        document = collection.find_one({"$nor": [{field: wanted}]}, {ID: 1})
        if document is None and form in (Form.BINARY, Form.UUID):
            subtype = UUID_SUBTYPE if form is Form.UUID else subtype_of(logical)
            document = _other_binary(collection, subtype, name if len(key) > 1 else None)
        _refuse(document, target, where, f"has not the form of column {name} ({form.value})")


def _other_binary(collection: Any, subtype: int, part: str | None) -> Any:
    """A document whose key's bytes are of another subtype than ours, and so never equal; queries cannot ask."""
    for one in collection.find({}, {ID: 1}):
        value = one[ID] if part is None else one[ID][part]
        if (value.subtype if isinstance(value, Binary) else 0) != subtype:
            return one
    return None


def _refuse(document: Document | None, target: TableId, where: str, why: str) -> None:
    if document is not None:
        raise TargetTakenError(
            f"{target} exists in {where} and has a document whose {ID} {why}. Choose another target."
        )


_NUMBERS = ("int", "long", "double", "decimal")
#: Types whose values may be equal to one that is written in a form, where they are more than its own.
_TYPES = dict.fromkeys((Form.INT32, Form.INT64, Form.UINT64, Form.DOUBLE, Form.DECIMAL), _NUMBERS)
