"""``raycdc inspect binlog``: row changes and other events of binlog files as JSON lines.

Rows are decoded by the compiled code of a pipeline; only the printing is Python. If a file is damaged, everything
before the damage is printed, and then one line on stderr with its file and position.

*Invariant*: every decoded row is printed. The decoder counts the rows that it decodes, and the printer counts the rows
of its lines, an update as two. If the counts differ after a piece of the file, the command ends with
`RowsNotPrintedError`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import EXECUTE_LOAD_QUERY, LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem, parse_query, parse_rotate
from raycdc.connectors.mysql.binlog.positions.gtid import gtid_text
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_map import AS_LOGGED
from raycdc.connectors.mysql.binlog.wire.file import BinlogFile
from raycdc.connectors.mysql.binlog.xa_transactions import prepared_xid
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.connectors.mysql.values.value_text import printers
from raycdc.core.terminal_text import printable, printable_json
from raycdc.errors import ConfigError, DataError, ExitCode, RowsNotPrintedError
from raycdc.model import RowKind, TableId

#: Index of the flags in the body of a GTID event of MariaDB.
_GTID_FLAGS = 12
#: Events of statements without effect: the first phase of a two-phase ALTER, and the end of a failed one. Only COMMIT
#: ALTER has an effect.
_ALTERS = {index.ALTER_START: "alter_start", index.ALTER_ROLLBACK: "alter_rollback"}
_GTIDS = frozenset({index.GTID, index.GTID_TAGGED, index.ANONYMOUS_GTID, index.MARIADB_GTID})
_ROWS_QUERY, _ANNOTATE_ROWS = 29, 160


def run(files: Sequence[Path], schema_sql: Path | None) -> int:
    """Run the command: `inspect_binlog` with standard output."""
    return inspect_binlog(files, schema_sql, sys.stdout)


def inspect_binlog(
    files: Sequence[Path], schema_sql: Path | None, out: TextIO, errors: TextIO | None = None
) -> ExitCode:
    """Print the events of every file. Returns `ExitCode.DATA` if one is damaged, after the events before the damage.

    `schema_sql` holds CREATE TABLE statements. A table name without a database stands for the table of this name in any
    database. Without `schema_sql`, names and types come from the log's metadata. Raises `ConfigError` for a file that
    cannot be read.
    """
    known = _read_schema(schema_sql) if schema_sql is not None else {}
    write = out.write
    prepared = ""
    for path in files:
        try:
            file = BinlogFile.open(path)
            decoder = _decoder(file, known, prepared)
            for line in _lines(file, decoder):
                write(line)
            # The next file may commit a transaction that this one prepared.
            prepared = decoder.cursor.position.prepared
        except DataError as error:
            out.flush()
            text = str(error).replace("\n", " ")
            print(printable(text if text.startswith(path.name) else f"{path.name}: {text}"), file=errors or sys.stderr)
            return ExitCode.DATA
        except BrokenPipeError:
            return ExitCode.DONE
    out.flush()
    return ExitCode.DONE


class _AnyDatabase(dict[TableId, MySqlTable]):
    """Tables by name. A table without a database stands for a table of that name in every database."""

    def get(self, key: TableId, default: Any = None) -> Any:
        found = super().get(key)
        if found is None:
            bare = super().get(TableId("", key.table))
            if bare is not None:
                return replace(bare, id=key)
        return default if found is None else found


def _read_schema(path: Path) -> dict[TableId, MySqlTable]:
    from raycdc.connectors.mysql.ddl.apply import RefusedStatement
    from raycdc.connectors.mysql.ddl.catalogue import DdlCatalogue
    from raycdc.connectors.mysql.ddl.parse.tokens import split_statements

    try:
        script = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read: {cause}") from cause
    catalogue = DdlCatalogue()
    for statement, _ in split_statements(script):
        answer = catalogue.run(statement, "")
        if isinstance(answer, RefusedStatement):
            raise ConfigError(f"{path}: {answer.reason}: {statement[:200]}")
    tables = {name: AS_LOGGED.treat_table(table.as_logged()) for name, table in catalogue.tables.items()}
    return {name: replace(table, for_people=True) for name, table in tables.items()}


def _decoder(file: BinlogFile, known: dict[TableId, MySqlTable], prepared: str) -> BinlogDecoder:
    return BinlogDecoder(
        MapSchemas.from_the_log(_AnyDatabase(known)),
        wanted=lambda _: True,
        start=BinlogOffset(file.name, 4, prepared=prepared),
        log=LogKind(mariadb=file.is_mariadb, json_point_zero=file.json_point_zero, whole_file=True),
    )


def _lines(file: BinlogFile, decoder: BinlogDecoder) -> Iterator[str]:
    printer = _FilePrinter(file)
    for raw in file.pieces():
        for piece, stripped in decoder.pieces(raw):
            rows: _Rows = defaultdict(list)
            failure: DataError | None = None
            try:
                for item in decoder.items_of(piece, stripped=stripped):
                    match item:
                        case BinlogRowsItem():
                            _collect(item, rows)
                        case DdlItem():
                            pass
            except DataError as error:
                failure = error
            damage = None if failure is None else decoder.damage_position
            yield from printer.events(piece, rows, damage, stripped=stripped)
            if failure is not None:
                raise failure
            if printer.printed != decoder.cursor.next_seq:
                raise RowsNotPrintedError(
                    f"{file.name}: of {decoder.cursor.next_seq} rows that were decoded up to "
                    f"{decoder.cursor.event_position}, {printer.printed} were printed (an update counts as two). "
                    "Do not rely on this output. This is a bug in raycdc; please report it, with the file if you can."
                )


@dataclass(frozen=True, slots=True)
class _RowLine:
    """A row change that is printed once its GTID is known. `seq` is its number among all rows of the file."""

    seq: int
    rows: int
    text: Callable[[str | None], str]


#: The row changes of each event, by the event's end position.
_Rows = dict[int, list[_RowLine]]


def _collect(item: BinlogRowsItem, rows: _Rows) -> None:
    """Turn a batch into lines, grouped by the end position of their event. Their GTID is filled in later."""
    batch, table = item.batch, item.described
    count = len(table.columns)
    columns = [printers(c)(batch.column(i)) for i, c in enumerate(table.columns)]
    names = [_quoted(c.name) + ": " for c in table.columns]
    images = ["{" + ", ".join(names[c] + columns[c][r] for c in range(count)) + "}" for r in range(batch.num_rows)]
    ops, seqs, millis = (batch.column(count + i).to_pylist() for i in range(3))
    db, name = _quoted(item.table.db), _quoted(item.table.table)
    file = json.dumps(item.file)
    for row, pos in enumerate(item.row_pos.tolist()):
        match ops[row]:
            case RowKind.INSERT:
                change = f'"op": "insert", "before": null, "after": {images[row]}'
            case RowKind.DELETE:
                change = f'"op": "delete", "before": {images[row]}, "after": null'
            case RowKind.UPDATE_BEFORE:
                change = f'"op": "update", "before": {images[row]}, "after": {images[row + 1]}'
            case _:
                continue

        def line(gtid: str | None, pos: int = pos, ts: int = millis[row], change: str = change) -> str:
            head = f'{{"file": {file}, "pos": {pos}, "ts_ms": {ts}, "gtid": {json.dumps(gtid)}'
            return f'{head}, "db": {db}, "table": {name}, {change}}}\n'

        rows[pos].append(_RowLine(seqs[row], 2 if ops[row] == RowKind.UPDATE_BEFORE else 1, line))


#: The JSON object of an event that has no rows.
Note = dict[str, int | str | None]


class _FilePrinter:
    """Prints the events of a file in their order: rows, and a note for each other event."""

    def __init__(self, file: BinlogFile) -> None:
        self._file = file.name
        self._mariadb = file.is_mariadb
        self._checksum = file.format.checksum_bytes
        self._gtid: str | None = None
        self._millis = 0
        #: MariaDB: the phase of a two-phase ALTER that the transaction contains, one of ALTER_….
        self._alter = index.ALTER_NONE
        self._at = 4
        #: The number of decoded rows that have been printed.
        self.printed = 0

    def events(self, piece: npt.NDArray[np.uint8], rows: _Rows, damage: int | None, *, stripped: bool) -> Iterator[str]:
        """Yield the lines of a piece of the file: its rows and other events, up to the position `damage` if it is
        given.

        The rows of an event are printed before the last event of the piece with the same end position. This is the
        event itself, or the event that ends its compressed transaction. If a transaction continues in the next piece,
        its rows in this piece are printed at the end of this piece.
        """
        yield from self._events(piece, rows, damage, stripped=stripped)
        yield from self._lines([line for lines in rows.values() for line in lines])

    def _lines(self, lines: list[_RowLine]) -> Iterator[str]:
        for line in sorted(lines, key=lambda line: line.seq):
            self.printed += line.rows
            yield line.text(self._gtid)

    def _events(
        self, piece: npt.NDArray[np.uint8], rows: _Rows, damage: int | None, *, stripped: bool
    ) -> Iterator[str]:
        at = 0
        checksum = 0 if stripped else self._checksum
        while at + index.HEADER_BYTES <= len(piece):
            head = piece[at : at + index.HEADER_BYTES].tobytes()
            length = int.from_bytes(head[9:13], "little")
            if length < index.HEADER_BYTES + checksum or at + length > len(piece):
                return
            end = self._end(head)
            if damage is not None and end > damage:
                return
            body = piece[at + index.HEADER_BYTES : at + length - checksum]
            at += length
            self._at = end
            following = piece[at : at + index.HEADER_BYTES].tobytes()
            if end in rows and (len(following) < index.HEADER_BYTES or self._end(following) != end):
                yield from self._lines(rows.pop(end))
            note = self._note(head, body, end)
            if note is not None:
                yield printable_json(json.dumps(note, ensure_ascii=False)) + "\n"
            if head[4] == index.ROTATE:
                # A relay log continues with the positions of a different file; the decoder counts in the same way.
                self._at = parse_rotate(body.tobytes())[1]

    def _end(self, head: bytes) -> int:
        """Return the end position of an event as the decoder counts it.

        Positions wrap at 4 GiB, and artificial events have none.
        """
        position = int.from_bytes(head[13:17], "little")
        if position == 0 or head[4] in (index.HEARTBEAT, index.HEARTBEAT_V2):
            return self._at
        position |= self._at & ~0xFFFFFFFF
        return position if position >= self._at else position + (1 << 32)

    def _note(self, head: bytes, body: npt.NDArray[np.uint8], end: int) -> Note | None:
        kind = head[4]
        seconds_ms = int.from_bytes(head[:4], "little") * 1000

        def note(type_: str, **more: int | str | None) -> Note:
            where: Note = {"type": type_, "file": self._file, "pos": end, "ts_ms": self._millis or seconds_ms}
            return {**where, "gtid": self._gtid, **more}

        if kind in _GTIDS:
            self._gtid, self._millis = gtid_text(head, body.tobytes(), mariadb=self._mariadb)
            self._alter = index.ALTER_NONE
            if kind == index.MARIADB_GTID and len(body) > _GTID_FLAGS:
                self._alter = int(index.alter_phase(body, 0, len(body)))
            return note("gtid")
        if kind == index.XID:
            return note("xid", xid=int.from_bytes(body[:8].tobytes(), "little"))
        if kind in (index.ROTATE, index.STOP):
            self._gtid, self._millis = None, 0
        if kind == index.XA_PREPARE:
            xid, one_phase = prepared_xid(body.tobytes())
            return note("xa_commit" if one_phase else "xa_prepare", xid=xid)
        if kind == index.ROTATE:
            next_file, next_pos = parse_rotate(body.tobytes())
            return note("rotate", next_file=next_file, next_pos=next_pos)
        if kind == index.QUERY:
            return self._query(body.tobytes(), note)
        if kind == EXECUTE_LOAD_QUERY:
            load = parse_query(body.tobytes(), kind=kind)
            return note("query", db=load.db, statement=load.statement)
        if kind == index.STOP:
            return note("stop")
        if kind in (_ROWS_QUERY, _ANNOTATE_ROWS):
            text = body[1:].tobytes() if kind == _ROWS_QUERY else body.tobytes()
            return note("rows_query", statement=text.decode("utf-8", "replace"))
        return None

    def _query(self, body: bytes, note: Callable[..., Note]) -> Note:
        query = parse_query(body)
        word = query.statement.upper()
        if word in ("BEGIN", "COMMIT", "ROLLBACK"):
            return note(word.lower())
        if word.startswith(("SAVEPOINT ", "ROLLBACK TO", "XA ")):
            return note("query", db=query.db, statement=query.statement)
        type_ = _ALTERS.get(self._alter, "ddl")
        return note(type_, db=query.db, statement=query.statement)


def _quoted(name: str) -> str:
    return printable_json(json.dumps(name, ensure_ascii=False))
