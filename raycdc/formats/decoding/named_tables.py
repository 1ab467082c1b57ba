"""The tables that the messages of one stream name, registered for the compiled scan.

The scan knows tables and schema texts by numbers. It stops at a name or a text that it does not know, and `NamedTables`
registers the name or text in Python, once for each table and schema text. A table is registered together with the
number of its schema text, because table and text identify one `Shape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raycdc.core.typed_codec import Json
from raycdc.formats.api import ChangeItem, MessageBatch
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.bad_messages import MALFORMED, MessageAt, malformed_schema
from raycdc.formats.decoding.pieces import TableDecoder
from raycdc.formats.decoding.sql_types import labels_of
from raycdc.formats.decoding.tables import TableState
from raycdc.formats.decoding.tombstones import KeyedTables, table_of_topic
from raycdc.formats.decoding.work import Chunk
from raycdc.formats.envelope import EnvelopeLayout, EnvelopeSpec, KnownTables, RepeatedTexts
from raycdc.formats.loops import envelope_loops as envelope
from raycdc.formats.loops.key_loops import key_names
from raycdc.formats.loops.tape_loops import ABSENT
from raycdc.formats.options import DEAD_LETTERS, DELETED_FIELD, FormatOptions
from raycdc.model import LogicalType, TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent

#: The fields that name a message's table.
_NAMES = (envelope.DATABASE, envelope.SCHEMA, envelope.TABLE)
#: The maximum number of stops of the scan at one message: for new texts, again if the new texts displaced known ones,
#: and for the table.
STOPS_MAX = 3


class EnvelopeDialect(Protocol):
    """The functions of a format that its `EnvelopeSpec` cannot express.

    Each is called once per table, schema text or DDL message.
    """

    spec: EnvelopeSpec

    def table_id(self, database: str, schema: str, table: str, topic: str) -> TableId:
        """Return the table's name in raycdc."""
        ...

    def described(self, version: bytes) -> list[WireColumn] | None:
        """Return the columns that an embedded schema text describes; None if it describes none."""
        ...

    def has_documents(self, message: bytes) -> bool:
        """Return True if a table's first message holds MongoDB's documents."""
        ...

    def primary_key(self, message: bytes, key: bytes | None) -> tuple[str, ...]:
        """Return the key columns that a table's first message names; empty if it names none."""
        ...

    def wire(self, logical: LogicalType) -> int:
        """Return the representation of a type's values if no schema is embedded."""
        ...

    def defined(self, message: bytes) -> tuple[list[WireColumn], tuple[str, ...]] | None:
        """Return the columns and the key that a DDL message defines; None if it defines none."""
        ...

    def changes(self, message: bytes, table: TableId) -> tuple[list[SchemaChangeEvent], str]:
        """Return other schema changes of a DDL or truncate message, and its statement."""
        ...

    def before_fix(self, message: bytes) -> str:
        """Return the advice about an update or delete without its before-image."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A table with one schema text and one key of its messages.

    `columns` are the columns that the text describes; None if there is no text. `key` has the key columns that the
    messages name: empty if the table has no key, None if the messages do not name a key.
    """

    decoder: TableDecoder
    columns: list[WireColumn] | None
    key: tuple[str, ...] | None = None


class NamedTables:
    """The tables that the scan knows; see the module's docstring. For one thread at a time."""

    def __init__(
        self, dialect: EnvelopeDialect, options: FormatOptions, *, keep_null_columns: bool, positions: bool
    ) -> None:
        self.layout = EnvelopeLayout(dialect.spec)
        self.layout.names.flags[envelope.FLAG_BEFORE_OPTIONAL] = options.before_image == "optional"
        self.layout.names.flags[envelope.FLAG_AFTER_OPTIONAL] = options.skips_missing_after
        self.shapes: list[Shape] = []
        self._dialect = dialect
        self._options = options
        self._keep_nulls = keep_null_columns
        self._positions = positions
        self._selector = options.selector()
        self._repeats = RepeatedTexts(dialect.spec.repeats)
        self._known = KnownTables()
        self._decoders: dict[TableId, TableDecoder] = {}
        #: The reasons why schema texts cannot be read, by the negative numbers of these texts, from `UNREADABLE` on.
        self._unreadable: list[str] = []
        self._keyed = KeyedTables()

    def __iter__(self) -> Iterator[TableDecoder]:
        return iter(self._decoders.values())

    def restore(self, states: Iterable[Json]) -> list[ChangeItem]:
        """Restore the tables of a decoder's state.

        Returns the changes between the declared columns of the last start and of this one.
        """
        changes: list[ChangeItem] = []
        for data in states:
            state = TableState.restored(data, keep_nulls=self._keep_nulls)
            given = self._options.schema_of(str(state.id))
            events: list[SchemaChangeEvent] = []
            if given is not None:
                events = state.declare(self._declared(given), given.primary_key)
            state.fixed = given is not None
            if events:
                changes.append(ChangeItem(state.id, tuple(events), 0, described=tuple(events)))
            self._decoders[state.id] = self._decoder(state)
        return changes

    def scan(self, batch: MessageBatch, chunk: Chunk) -> None:
        """Find the envelope and the table of every message of the chunk.

        Raises `RuntimeError` if the scan stops at one message more often than its texts and its table can explain.
        """
        self._number_keys(batch, chunk)
        self._forget_tables_of_tombstones()
        first, stops = 0, 0
        while True:
            why, stopped = envelope.scan(
                chunk.tape, self._repeats.view, self.layout.names, self._known.view, chunk.messages, first
            )
            if why == envelope.STOP_END:
                return
            stops = stops + 1 if stopped == first else 1
            first = stopped
            if stops > STOPS_MAX:
                raise RuntimeError(f"{MessageAt(batch, chunk, first).location}: its table does not become known")
            if why == envelope.STOP_TEXT:
                self._new_texts(chunk)
            elif why == envelope.STOP_TOMBSTONE:
                self._name_table_of_tombstones(MessageAt(batch, chunk, first))
            else:
                self._new_table(MessageAt(batch, chunk, first))

    def of_ours(self) -> list[int]:
        """Return the numbers by which the scan knows the table of dead letters; empty if no message names that
        table.
        """
        if self._options.on_error != "dead-letter" or DEAD_LETTERS not in self._decoders:
            return []
        return [number for number, shape in enumerate(self.shapes) if shape.decoder.state.id == DEAD_LETTERS]

    def why_unreadable(self, message: MessageAt) -> str:
        """Return why the schema text of a message with the error `BAD_SCHEMA` cannot be read."""
        number = int(message.chunk.messages.info[message.number, envelope.TABLE_NUMBER])
        return self._unreadable[envelope.UNREADABLE - number]

    def takes_none_of(self, message: MessageAt) -> bool:
        """Return True if a bad message names a table that is not selected.

        A message that is not JSON, or whose names are not texts, names no table.
        """
        if self._selector is None or not message.text(envelope.TABLE) or message.fails_by(envelope.NO_NAME):
            return False
        return not self._selector.matches(self._table_id(message))

    def _new_texts(self, chunk: Chunk) -> None:
        unknown = [(name, chunk.token(token)) for name, token in self._repeats.unknown()]
        if self._repeats.is_full:
            # Tables are registered together with the numbers of their texts, so both are cleared.
            self._repeats.clear()
            self._known.clear()
        for name, text in unknown:
            self._repeats.add(name, text)

    def _new_table(self, message: MessageAt) -> None:
        database, schema, name = (message.chunk.text(message.number, slot) for slot in _NAMES)
        table_id = self._table_id(message)
        columns_text, key_text = (
            self._repeats.found(int(self.layout.names.flags[flag])) if self.layout.names.flags[flag] >= 0 else ABSENT
            for flag in (envelope.FLAG_VERSION_NAME, envelope.FLAG_KEY_NAME)
        )
        key_shape = int(message.chunk.messages.info[message.number, envelope.KEY_SHAPE])
        self._forget_tables_of_tombstones()
        index = envelope.NOT_TAKEN
        # A statement about a whole database names no table, and must be seen even if only some of its tables are
        # selected.
        whole_database = not name and message.does(envelope.DDL)
        if self._selector is None or whole_database or self._selector.matches(table_id):
            try:
                columns = self._dialect.described(self._repeats.text(columns_text)) if columns_text >= 0 else None
            except MALFORMED as cause:
                index = envelope.UNREADABLE - len(self._unreadable)
                self._unreadable.append(malformed_schema(cause))
            else:
                decoder = self._decoders.get(table_id)
                if decoder is None:
                    decoder = self._decoders[table_id] = self._first_seen(message, table_id)
                index = len(self.shapes)
                self.shapes.append(Shape(decoder, columns, self._told_key(message)))
        else:
            self._keyed.left_out.add(table_id)
        if index >= 0:
            self.layout.names.flags[envelope.FLAG_DELETED_ROWS] = self._deletes_by_field(self.shapes[index].decoder)
        version = envelope.version_number(columns_text, key_text, key_shape)
        documents = index >= 0 and self.shapes[index].decoder.state.extended
        self._known.add((database, schema, name), version, index, documents=documents)

    def _deletes_by_field(self, decoder: TableDecoder) -> bool:
        """Return True if a row with a true `DELETED_FIELD` is a delete: if the declared columns leave the field out."""
        if not self._dialect.spec.whole_row or not decoder.state.fixed:
            return False
        return all(column.name.lower() != DELETED_FIELD for column in decoder.state.columns)

    def _told_key(self, message: MessageAt) -> tuple[str, ...] | None:
        """Return the key columns that messages like this one name; None if such messages name no key columns."""
        spec = self._dialect.spec
        if message.does(envelope.DDL) or message.does(envelope.TRUNCATE):
            return None
        if not spec.key_list and (not spec.keyed or message.batch.keys is None):
            return None
        told = self._dialect.primary_key(message.raw, message.key)
        return told if told or message.batch.keys is not None or not spec.keyed else None

    def _number_keys(self, batch: MessageBatch, chunk: Chunk) -> None:
        """Number the sets of field names that the keys of the chunk's messages have."""
        if not self._dialect.spec.keyed or batch.keys is None:
            return
        hashes = np.zeros(chunk.count, np.int64)
        key_names(chunk.tape.data, chunk.messages.info, hashes)
        chunk.column(envelope.KEY_SHAPE)[:], cleared = self._keyed.number(hashes)
        if cleared:
            self._known.clear()

    def _forget_tables_of_tombstones(self) -> None:
        flags = self.layout.names.flags
        flags[envelope.FLAG_TOMBSTONE_TABLE] = envelope.ASK
        flags[envelope.FLAG_KEY_TABLE :] = 0

    def _name_table_of_tombstones(self, message: MessageAt) -> None:
        """Find the table whose rows the tombstones of this partition delete, as far as tables are known now: all
        tombstones, or those whose key names the same table as the key of `message`.
        """
        flags, topic = self.layout.names.flags, message.batch.origin.topic
        if name_hash := int(flags[envelope.FLAG_KEY_TABLE]):
            named = self._keyed.table_of_key(message.key, [decoder.state for decoder in self._decoders.values()])
            slot = envelope.FLAG_KEY_TABLE + 1 + 3 * ((name_hash - 1) % 2**31 % envelope.KEY_TABLES_MAX)
            flags[slot : slot + 3] = (name_hash, *self._meaning(named))
            return
        if self._dialect.spec.whole_row:
            own = self._dialect.table_id("", "", "", topic)
            taken = self._selector is None or self._selector.matches(own)
            if taken and own not in self._decoders and self._options.schema_of(str(own)) is not None:
                self._decoders[own] = self._first_seen(message, own)
            found = table_of_topic(own, {table: decoder.state for table, decoder in self._decoders.items()})
        else:
            states = [decoder.state for decoder in self._decoders.values()]
            found = self._keyed.table_of(topic, states, alone=self._selector is None)
        flags[envelope.FLAG_TOMBSTONE_TABLE], flags[envelope.FLAG_TOMBSTONE_DOCUMENT] = self._meaning(found)

    def _meaning(self, found: TableState | int) -> tuple[int, bool]:
        """Return the number of the table to which tombstones belong, and True if its rows are documents."""
        if isinstance(found, int):
            return found, False
        if found.id not in self._keyed.shapes:
            self._keyed.shapes[found.id] = len(self.shapes)
            self.shapes.append(Shape(self._decoders[found.id], None))
        return self._keyed.shapes[found.id], found.extended

    def _table_id(self, message: MessageAt) -> TableId:
        database, schema, table = (message.text(slot) for slot in _NAMES)
        return self._dialect.table_id(database, schema, table, message.batch.origin.topic)

    def _first_seen(self, message: MessageAt, table_id: TableId) -> TableDecoder:
        """Return the decoder of a table whose first message is `message`."""
        given = self._options.schema_of(str(table_id))
        state = TableState(table_id, keep_nulls=self._keep_nulls)
        if given is not None:
            state.define(self._declared(given), given.primary_key)
            state.fixed = True
        elif not message.does(envelope.DDL):
            state.primary_key = self._dialect.primary_key(message.raw, message.key)
        state.extended = self._dialect.spec.extended and self._dialect.has_documents(message.raw)
        decoder = self._decoder(state)
        decoder.begin(message.batch)
        return decoder

    def _declared(self, given: TableSchema) -> list[WireColumn]:
        labels = {c.name: labels_of(c.type) for c in given.columns}
        return [WireColumn(c.name, c.type, self._dialect.wire(c.type), labels[c.name]) for c in given.columns]

    def _decoder(self, state: TableState) -> TableDecoder:
        return TableDecoder(state, self.layout, self._options, positions=self._positions)
