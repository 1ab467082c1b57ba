"""How a collection looks now, proven to hold at a place of the change stream, and how its snapshot begins.

For the collections that begin again while others stream (`raycdc.source.new_beginnings`); runs in the thread that reads
the change stream, or the quiet log.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.connectors.mongodb.catalog import found, layout_of, require_followable
from raycdc.connectors.mongodb.client import connect
from raycdc.connectors.mongodb.hidden import require_hidden
from raycdc.connectors.mongodb.layout import ID, REST, Layout, Spelling
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.stream.causal import log_end
from raycdc.connectors.mongodb.stream.drift import Widening
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.source.new_beginnings import Fit, Unfit, unread

#: Times a collection is looked at while others take its name.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class CollectionLooks:
    """See the module's docstring. Each look has a client of its own, and blocks.

    `context` has the rules of targets, and says whether images must be the rows that targets have.
    """

    config: MongoDbSourceConfig
    context: SourceContext

    def layout_now(self, table: TableId) -> Layout | None:
        """The layout of the collection; None where there is no such collection. For a source that follows no log."""
        with connect(self.config.uri) as client:
            uuid = found(client, table)
            return None if uuid is None else layout_of(client, self.config, table, uuid)

    def look_at(self, table: TableId) -> Fit[Layout] | Unfit | None:
        """The collection, its layout, the collection again: where it is the same one, that was it at the time after.

        None: there is no such collection.
        """
        config, rules = self.config, self.context.rules
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

    def widening(self, table: TableId) -> Widening | None:
        """How a collection gets more columns; None where it does not, or where its targets would not have them.

        Nor where somebody works with what is in the rest, which it would leave, or puts documents together again, or
        where images must be the rows that targets have.
        """
        options, rules = self.config.schema_, self.context.rules
        fixed = self.config.spelling is Spelling.BSON or self.context.demands_before
        if fixed or not self.config.infers(table) or not rules.gets_added or rules.speaks_of(table, REST):
            return None
        return Widening(options.fields_max, options.on_conflict, rules)
