"""The options ``snapshot.filter``, ``.fields`` and ``.limit``, which select documents of a collection and their fields.

The options are only for collections that are read once. In a change stream a filter would mean something else: a
document may begin or cease to meet the filter, and an update may come without the document that the filter needs. The
server evaluates filters and projections. A filter or projection is refused here if chunks could overlap, or differ when
they are read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    # Imported for types only, because the driver may not be installed when a configuration is read.
    from raycdc.connectors.mongodb.bson.documents import Document

#: A JSON value.
Json: TypeAlias = "str | float | bool | list[Json] | dict[str, Json] | None"

#: Operators that are impossible in a query by an index, or whose result changes with each evaluation.
_REFUSED = frozenset({"$where", "$text", "$near", "$nearSphere", "$function", "$rand", "$sampleRate"})
#: The operators that a filter may have at its top level, in place of a field.
_TOP_LEVEL = frozenset({"$and", "$or", "$nor", "$expr", "$jsonSchema", "$comment"})


@dataclass(frozen=True, slots=True)
class CollectionSelection:
    """The selected part of a collection: documents that meet `filter` (Extended JSON; "": all).

    `fields` are the selected fields (empty: those that columns need); `limit` is the greatest number of documents (0:
    all).
    """

    filter: str = ""
    fields: tuple[str, ...] = ()
    limit: int = 0

    def __str__(self) -> str:
        """Return the selection as text, for comparison with a state's; empty if everything is selected."""
        parts = [
            f"filter {self.filter}" if self.filter else "",
            f"fields {', '.join(self.fields)}" if self.fields else "",
            f"limit {self.limit}" if self.limit else "",
        ]
        return ", ".join(part for part in parts if part)

    def query(self) -> Document:
        """Return the filter in the driver's form. Raises ValueError if the text is no Extended JSON."""
        if not self.filter:
            return {}
        # Imported here, because the driver may not be installed when a configuration is read.
        from bson import encode, json_util
        from bson.codec_options import DatetimeConversion
        from bson.errors import BSONError

        options = json_util.JSONOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
        try:
            query: Document = json_util.loads(self.filter, json_options=options)
            # Encode it, because a number may be too large for any BSON type.
            encode(query)
        except (ArithmeticError, BSONError, TypeError, ValueError, KeyError) as cause:
            raise ValueError(f"{self.filter} is no Extended JSON: {cause}") from cause
        return query


def require_filter(text: str) -> None:
    """Raise ValueError, with the reason, for an invalid filter in the configuration."""
    try:
        query = json.loads(text, object_pairs_hook=_once)
    except _TwiceError as cause:
        raise ValueError(f'{text!r} has {cause} twice in one document, and only one would count; use "$and"') from cause
    except ValueError as cause:
        raise ValueError(f"{text!r} is no JSON: {cause}") from cause
    if not isinstance(query, dict):
        raise ValueError(f'{text!r} is no document, as {{"status": "new"}} is')  # noqa: TRY004 - as pydantic wants it
    for name in query:
        if name.startswith("$") and name not in _TOP_LEVEL | _REFUSED:
            raise ValueError(f"{name} is no operator that a filter begins with")
    if bad := sorted(_REFUSED.intersection(_names(query))):
        raise ValueError(f"{', '.join(bad)}: a filter that reads by the index of _id, chunk by chunk, cannot have it")


def require_fields(fields: Sequence[str]) -> None:
    """Raise ValueError unless these are fields, dotted or not, and none contains another."""
    if not fields:
        raise ValueError("an empty list of fields; leave it out for all of them")
    for name in fields:
        if not name or any(not part or part.startswith("$") for part in name.split(".")) or "\0" in name:
            raise ValueError(f"{name!r} is no field of a document, as status or address.city is")
        if name.startswith("_id."):
            raise ValueError(f"{name!r} is a part of the key, by which documents are told apart; _id is always whole")
    for name in fields:
        parts = name.split(".")
        above = {".".join(parts[:end]) for end in range(1, len(parts))}
        if held := above.intersection(fields):
            raise ValueError(f"{name!r} is a part of {min(held)!r}; name one of them")
    if len(set(fields)) != len(fields):
        raise ValueError("a field is named twice")


def require_limit(limit: int) -> None:
    """Raise ValueError for an invalid limit."""
    if limit < 1:
        raise ValueError("a limit is 1 or more; leave it out for all documents")


class _TwiceError(Exception):
    """A document has the same field name twice."""


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return a JSON document as a dict.

    Raises if a field name is repeated, because json would keep the last one silently.
    """
    document: dict[str, Json] = {}
    for name, value in pairs:
        if name in document:
            raise _TwiceError(name)
        document[name] = value
    return document


def _names(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)
