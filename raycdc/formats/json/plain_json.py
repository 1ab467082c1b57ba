"""``json``: every message is a row, appended as an insert. The table is named after the topic.

Debezium's unwrapped form (ExtractNewRecordState) may write a delete as the row with ``"__deleted": "true"``. Such a row
is a delete, unless the columns that the user declares include ``__deleted``.
"""

from __future__ import annotations

from typing import ClassVar

from raycdc.formats.envelope import Action, EnvelopeSpec
from raycdc.formats.json.dialect import NO_DATABASE, JsonDialect
from raycdc.formats.options import DELETED_FIELD
from raycdc.model import TableId

# With `patch`, the row of a delete is the message itself.
SPEC = EnvelopeSpec(type=DELETED_FIELD, whole_row=True, patch=True, default_action=Action.INSERT)


class PlainJson(JsonDialect):
    """Rows as JSON objects."""

    identifier: ClassVar[str] = "json"
    spec = SPEC

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """Return the table of a topic: the topic ``shop.orders`` has the table of that name; other topics have a table
        in `NO_DATABASE`.
        """
        first, dot, rest = topic.partition(".")
        return TableId(first, rest) if dot and first and rest else TableId(NO_DATABASE, topic)
