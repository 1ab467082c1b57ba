"""The options that all formats share. A format's own model adds options to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from raycdc.config import Options, TablePattern, option
from raycdc.formats.decoding.sql_types import parse_columns
from raycdc.model import TableId, TableSchema
from raycdc.model.rules.selector import TableSelector

#: The target of messages that cannot be decoded, if ``on_error = "dead-letter"``. No message may name this table as its
#: own.
DEAD_LETTERS = TableId("raycdc", "dead_letters")


#: Debezium's default for ``unavailable.value.placeholder``.
UNAVAILABLE = "__debezium_unavailable_value"


#: The field in the key of a message that names the row's table, as Debezium's ByLogicalTableRouter writes it
#: (``key.field.name``).
TABLE_FIELD = "__dbz__physicalTableIdentifier"

#: The field of an unwrapped row by which Debezium says if the row was deleted (``delete.handling.mode = rewrite``).
DELETED_FIELD = "__deleted"


def _check_columns(text: str) -> str:
    parse_columns(text, key_path="columns")
    return text


Columns = Annotated[str, AfterValidator(_check_columns)]


class ColumnsOptions(Options):
    """The columns of a format's tables: configured, or taken from messages up to a maximum number."""

    columns: Columns | None = option(
        None,
        help="Columns of the tables, as in CREATE TABLE. Without it they come from the messages.",
        example="id BIGINT, name STRING, PRIMARY KEY (id)",
    )
    tables: dict[str, Columns] = option(
        {}, help="Columns per table (DATABASE.TABLE).", example={"shop.orders": "id BIGINT, total DECIMAL(10,2)"}
    )
    columns_max: int = option(
        2000,
        help="At most so many columns of a table come from the fields of its messages; a message with fields beyond "
        "that cannot be decoded. Fields that values are keyed by (dates, names) would be columns without end.",
        ge=1,
        le=10_000,
    )

    def schema_of(self, table: str) -> TableSchema | None:
        """Return the schema configured for `table` (DATABASE.TABLE); None if there is none."""
        text = self.tables.get(table, self.columns)
        return None if text is None else parse_columns(text, key_path="columns")


class FormatOptions(ColumnsOptions):
    """The message format of a Kafka source or sink: ``format = { type = "maxwell-json", … }``."""

    type: str = option(help="Identifier of the format.", example="maxwell-json")
    include: tuple[TablePattern, ...] = option((), help="Tables to take: names or patterns as in source.tables.")
    exclude: tuple[TablePattern, ...] = option((), help="Tables to leave out.")
    on_error: Literal["fail", "skip", "dead-letter"] = option(
        "fail", help="The treatment of a message that cannot be decoded."
    )
    before_image: Literal["required", "optional"] = option(
        "required",
        help="optional: an update without the row as it was before counts as its new row alone, which is enough for a "
        "target with a key.",
    )
    ddl: Literal["follow", "ignore"] = option(
        "follow",
        help="The treatment of DDL messages, and of described columns that change. follow: schemas, defaults of new "
        "columns and emptied tables are followed; any other change of existing rows ends the run. ignore: only rows "
        "count.",
    )
    case_sensitive: bool = option(default=False, help="Whether fields must be spelled exactly as the columns.")
    metadata: dict[str, str] = option(
        {}, help="Fields of the envelope as columns: name of the field, name of the column.", example={"xid": "_xid"}
    )
    include_schema: bool = option(default=False, help="Writing: put the schema into every message (Debezium).")
    tombstones: bool = option(
        default=False, help="Writing: a message without value after each delete, for compacted topics."
    )
    table_in_key: bool = option(
        default=False,
        help="Writing: name the table in the key of each message, in the field `__dbz__physicalTableIdentifier`. It is "
        "always set for a topic that sink.topic gives to several tables. Keys of maxwell-json always name the table.",
    )

    @property
    def unavailable_placeholder(self) -> str:
        """Return the placeholder of Debezium for values that a change does not have."""
        return UNAVAILABLE

    @property
    def skips_missing_after(self) -> bool:
        """Return True if an update of a document without the document after it is left out."""
        return False

    def selector(self) -> TableSelector | None:
        """Return the selector of tables; None if all are selected."""
        if not self.include and not self.exclude:
            return None
        return TableSelector(self.include or (r".*\..*",), self.exclude, key_path="source.format")
