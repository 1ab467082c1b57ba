"""How a collection looks now, proven to hold at a place of the change stream, and how its snapshot begins.

For the collections that begin again while others stream (`raycdc.source.new_beginnings`); runs in the thread that reads
the change stream.
"""

from __future__ import annotations

from raycdc.connectors.mongodb.catalog import found, layout_of, require_followable
from raycdc.connectors.mongodb.client import connect
from raycdc.connectors.mongodb.hidden import require_hidden
from raycdc.connectors.mongodb.layout import ID, Layout
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.stream.causal import log_end
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.new_beginnings import Fit, Unfit, unread
from raycdc.transform.followed import TargetRules

#: Times a collection is looked at while others take its name.
_TRIES = 5


def look_at(config: MongoDbSourceConfig, table: TableId, rules: TargetRules) -> Fit[Layout] | Unfit | None:
    """The collection, its layout, the collection again: where it is the same one, that was it at the time after.

    None: there is no such collection. `rules` say what targets can hold.
    """
    with connect(config.uri) as client:
        for _ in range(_TRIES):
            uuid = found(client, table)
            if uuid is None:
                return None
            try:
                require_followable(client, [table])
                require_hidden(client, config, [table], rules.masks)
                layout = layout_of(client, config, table, uuid)
            except SourceUnavailableError:
                raise
            except (ConfigError, SourceError) as refused:
                return Unfit(str(refused), log_end(client))
            if why := rules.refusal(table, layout.schema()):
                return Unfit(why, log_end(client))
            if found(client, table) == uuid:
                return Fit(layout, log_end(client), unread(ID))
    raise SourceUnavailableError(f"{table} was another collection each time it was looked at.")
