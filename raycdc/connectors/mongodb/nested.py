"""What stands inside the nested values of sampled documents, in words: columns of JSON say it for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bson.raw_bson import RawBSONDocument

from raycdc.connectors.mongodb.catalog import kind_of

#: Levels below a column, and fields of a document, that are told.
_DEPTH_MAX, _FIELDS_MAX = 3, 12
_VALUES_MAX = 200


def nested_types(documents: Iterable[RawBSONDocument]) -> dict[str, str]:
    """The fields that hold documents or arrays, and what these hold: ``{city: string, zip: string}``, ``[string]``."""
    values: dict[str, list[object]] = {}
    for document in documents:
        for name, value in document.items():
            values.setdefault(name, []).append(value)
    return {
        name: _types(met, 0)
        for name, met in values.items()
        if any(isinstance(value, RawBSONDocument | list) for value in met[:_VALUES_MAX])
    }


def _types(values: Sequence[object], depth: int) -> str:
    """All types of `values`, with ``or`` between them."""
    seen = values[:_VALUES_MAX]
    types = sorted({kind_of(v) for v in seen if v is not None and not isinstance(v, RawBSONDocument | list)})
    documents = [value for value in seen if isinstance(value, RawBSONDocument)]
    if documents:
        types.append(_document(documents, depth))
    items = [item for value in seen if isinstance(value, list) for item in value]
    if items or any(isinstance(value, list) for value in seen):
        types.append(f"[{_types(items, depth + 1) if depth < _DEPTH_MAX else '...'}]")
    return " or ".join(types) or "null"


def _document(documents: Sequence[RawBSONDocument], depth: int) -> str:
    if depth >= _DEPTH_MAX:
        return "{...}"
    fields: dict[str, list[object]] = {}
    for document in documents:
        for name, value in document.items():
            fields.setdefault(name, []).append(value)
    told = [f"{name}: {_types(met, depth + 1)}" for name, met in list(fields.items())[:_FIELDS_MAX]]
    return f"{{{', '.join(told)}{', ...' if len(fields) > _FIELDS_MAX else ''}}}"
