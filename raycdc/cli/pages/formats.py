"""The page ``formats``: the message formats, if they can be written, and every option of each."""

from __future__ import annotations

from raycdc.cli.pages.markdown import table
from raycdc.config.reference import format_sections
from raycdc.errors import ConfigError
from raycdc.formats.plugins import load_format
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.plugins import PluginGroup, list_plugins

_BEGIN = """# Message formats and their options

Messages of Kafka's topics (`raycdc docs kafka`) are in one of these formats. `format = "maxwell-json"` takes one as
it is, `format = { type = "maxwell-json", on_error = "skip" }` with options; it stands in `[source]` where messages are
read, and in `[sink]` where they are written. `raycdc inspect messages --format FORMAT FILE` prints what messages mean,
and `raycdc docs types` how values look in each."""

_KEY = LogicalType(TypeKind.INT32)


def formats_page() -> str:
    """Return the text of the page."""
    rows = [
        (f"`{listing.type}`", listing.summary, "yes" if is_written(listing.type) else "no")
        for listing in list_plugins()
        if listing.group is PluginGroup.FORMATS and listing.package == "raycdc"
    ]
    parts = [_BEGIN, table(("format", "its messages", "can be written"), rows)]
    return "\n\n".join([*parts, *format_sections()]) + "\n"


def is_written(identifier: str) -> bool:
    """Return True if messages in this format can be written, too, and not only read."""
    try:
        load_format(identifier).encoder(TableId("shop", "orders"), TableSchema((Column("id", _KEY),), ("id",)))
    except ConfigError:
        return False
    return True
