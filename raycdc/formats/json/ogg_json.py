"""``ogg-json``: Oracle GoldenGate's JSON ("Using the JSON Formatter", operation model).

``{"table": "SCOTT.EMP", "op_type": "U", "op_ts", "current_ts", "pos", "primary_keys": […], "before": {…}, "after":
{…}}``. If only changed columns and key columns are logged, a column that one image of an update lacks is taken from the
other image.
"""

from __future__ import annotations

from typing import ClassVar

from raycdc.formats.envelope import NESTED, TEXT, Action, EnvelopeSpec, MetadataField, TimeUnit
from raycdc.formats.json.dialect import NO_DATABASE, OPTIONAL_FIX, JsonDialect, names, parsed
from raycdc.model import TableId
from raycdc.model.evolution import SchemaChangeEvent, TruncateTableEvent

SPEC = EnvelopeSpec(
    type="op_type",
    after="after",
    before="before",
    table="table",
    time="op_ts",
    time_unit=TimeUnit.TEXT,
    overlay=True,
    whole_images="Add supplemental logging of all columns (ADD TRANDATA … ALLCOLS), and have extract and handler write "
    "whole rows (LOGALLSUPCOLS, NOCOMPRESSUPDATES, NOCOMPRESSDELETES).",
    actions={"I": Action.INSERT, "U": Action.UPDATE, "D": Action.DELETE, "T": Action.TRUNCATE},
    repeats=("primary_keys",),
    key_list="primary_keys",
    metadata={
        "table": MetadataField("table", TEXT),
        "op_type": MetadataField("op_type", TEXT),
        "op_ts": MetadataField("op_ts", TEXT),
        "current_ts": MetadataField("current_ts", TEXT),
        "pos": MetadataField("pos", TEXT),
        "primary_keys": MetadataField("primary_keys", NESTED),
        "tokens": MetadataField("tokens", NESTED),
    },
)


class OggJson(JsonDialect):
    """Oracle GoldenGate's JSON."""

    identifier: ClassVar[str] = "ogg-json"
    spec = SPEC

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """Return the table of ``SCHEMA.TABLE`` or ``CATALOG.SCHEMA.TABLE``, whose first part is the database."""
        first, dot, rest = table.partition(".")
        return TableId(first, rest) if dot else TableId(NO_DATABASE, table or topic)

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key from ``primary_keys``."""
        return names(parsed(message).get("primary_keys"))

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return the truncation of a table."""
        truncated = parsed(message).get("op_type") == "T"
        return ([TruncateTableEvent(table)] if truncated else []), ""

    def before_fix(self, message: bytes) -> str:
        """Return the advice about a missing before-image: supplemental logging decides which columns are logged."""
        return (
            "Add supplemental logging of all columns (ADD TRANDATA … ALLCOLS) and let the extract write before-images "
            f"(LOGALLSUPCOLS). {OPTIONAL_FIX}"
        )
