"""Binary logs read twice: by raycdc and by the server's own ``mysqlbinlog``, row for row and value for value.

The other reader prints what lies in the log, without names of columns: numbers for ENUM and SET, seconds for TIMESTAMP,
bytes for text. Ours are brought to that form. What it cannot print (a geometry of MySQL, the rest of a JSON document of
which the log has a part) is not compared.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, FormatDescription
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.wire.file import BinlogFile
from raycdc.connectors.mysql.values.types import MySqlColumn
from raycdc.errors import DataError
from raycdc.sandbox.cache import cache_dir
from tests.suites.package import SuitePackage

_EVENT = re.compile(rb"^### (INSERT INTO|UPDATE|DELETE FROM) (`(?:[^`]|``)*`)\.(`(?:[^`]|``)*`)$")
_VALUE = re.compile(rb"^###   @(\d+)=(.*?)(?: /\* (.*?) \*/)?$", re.DOTALL)
_XA = re.compile(rb"^XA (PREPARE|COMMIT|ROLLBACK) (.*?)(?: ONE PHASE)?(?:/\*!\*/;)?$")
_SAVEPOINT = re.compile(rb"^SAVEPOINT (.*)$")
_ROLLBACK_TO = re.compile(rb"^ROLLBACK (?:WORK )?TO (?:SAVEPOINT )?(.*)$")
_OPS = {"INSERT INTO": ("+I",), "UPDATE": ("-U", "+U"), "DELETE FROM": ("-D",)}
_NAMES = {0: "+I", 1: "-U", 2: "+U", 3: "-D"}
#: Python's name for the character sets whose bytes it makes as the server does.
_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "cp1252",
    "latin2": "iso8859-2", "latin5": "iso8859-9", "cp1250": "cp1250", "cp1251": "cp1251", "koi8r": "koi8-r",
    "greek": "iso8859-7",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "gbk": "gbk", "big5": "big5",
}  # fmt: skip


class LogReaderError(Exception):
    """The other reader broke off."""


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row as the other reader prints it: values by number of the column, with their types."""

    table: tuple[str, str]
    op: str
    values: Mapping[int, tuple[bytes, str]]
    #: The log takes it back later, if its table's engine can: raycdc may not have it.
    taken_back: bool = False


@dataclass(frozen=True, slots=True)
class OurRow:
    """A row as raycdc decodes it."""

    table: tuple[str, str]
    op: str
    columns: tuple[MySqlColumn, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogReader:
    """A ``mysqlbinlog`` and what runs it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of_mariadb(cls, package: SuitePackage) -> LogReader:
        """MariaDB's."""
        return cls((str(package.log_reader),), package.environment)

    @classmethod
    def of_mysql(cls) -> LogReader | None:
        """MySQL's newest, which reads the logs of all its versions; None where it is not installed."""
        home = cache_dir() / "mysql-newest"
        if not home.is_dir():
            return None
        libraries = home / "usr/lib/x86_64-linux-gnu"
        path = f"{libraries}:{home}/usr/lib/mysql/private"
        linker = (str(libraries / "ld-linux-x86-64.so.2"), "--library-path", path)
        return cls((*linker, str(home / "usr/bin/mysqlbinlog")), {"OPENSSL_CONF": "/dev/null"})

    def rows(self, path: Path) -> Iterator[PrintedRow]:
        """The rows of a log, in order."""
        done = subprocess.run(
            [*self.command, "--no-defaults", "-vv", "--base64-output=DECODE-ROWS", str(path)],
            env={**os.environ, **self.environment}, capture_output=True, check=False,
        )  # fmt: skip
        yield from _printed(done.stdout)
        if done.returncode != 0:
            raise LogReaderError(
                f"mysqlbinlog ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
            )


def _printed(text: bytes) -> Iterator[PrintedRow]:
    """The rows in the order in which they are committed, those of a prepared transaction when that is."""
    rows: list[PrintedRow] = []
    savepoints: dict[bytes, int] = {}
    prepared: dict[bytes, list[PrintedRow]] = {}
    table, ops = ("", ""), tuple[str, ...]()
    images: list[dict[int, tuple[bytes, str]]] = []

    def take_back(first: int) -> None:
        rows[first:] = [replace(row, taken_back=True) for row in rows[first:]]

    # A byte that ends a line for Python ends none here.
    for line in text.split(b"\n"):
        found = _EVENT.match(line)
        if found or not line.startswith(b"### "):
            rows += [PrintedRow(table, op, image) for op, image in zip(ops, images, strict=False)]
            images = []
        if found:
            ops = _OPS[found[1].decode()]
            table = (_unquoted(found[2]), _unquoted(found[3]))
        elif line in (b"### SET", b"### WHERE"):
            images.append({})
        elif value := _VALUE.match(line):
            images[-1][int(value[1])] = (value[2].strip(b" "), (value[3] or b"").decode())
        elif ends := _XA.match(line):
            match ends[1]:
                case b"PREPARE":
                    prepared[ends[2]] = rows
                    rows = []
                case b"COMMIT":
                    yield from prepared.pop(ends[2], [])
                case _:
                    yield from (replace(row, taken_back=True) for row in prepared.pop(ends[2], []))
        elif line.startswith((b"BEGIN", b"COMMIT", b"XA START", b"START TRANSACTION")):
            yield from rows
            rows, savepoints = [], {}
        elif savepoint := _SAVEPOINT.match(line):
            savepoints[savepoint[1]] = len(rows)
        elif back := _ROLLBACK_TO.match(line):
            take_back(savepoints.get(back[1], 0))
        elif line.startswith(b"ROLLBACK") and not line.startswith(b"ROLLBACK /* added by mysqlbinlog"):
            take_back(0)
            yield from rows
            rows, savepoints = [], {}
    take_back(0)
    yield from rows


def _unquoted(name: bytes) -> str:
    return name[1:-1].replace(b"``", b"`").decode()


def our_rows(path: Path, *, mariadb: bool, apart: Collection[str] = ()) -> Iterator[OurRow]:
    """The rows of a log as raycdc decodes them, in order, with no schema but the log's own.

    None of the databases `apart`.
    """
    decoder = BinlogDecoder(
        MapSchemas.from_the_log(),
        wanted=lambda table: table.db not in apart,
        start=BinlogOffset("binlog.000001", 4),
        log=LogKind(mariadb=mariadb, whole_file=True),
    )
    file = BinlogFile("binlog.000001", np.frombuffer(path.read_bytes(), np.uint8), FormatDescription("", 0))
    # Items of one piece go by table; a transaction's rows go by their number.
    for piece in file.pieces():
        rows: list[tuple[int, OurRow]] = []
        for item in decoder.items(piece):
            if isinstance(item, BinlogRowsItem):
                rows += _numbered(item)
        yield from (row for _, row in sorted(rows, key=lambda numbered: numbered[0]))


def _numbered(item: BinlogRowsItem) -> Iterator[tuple[int, OurRow]]:
    batch = item.batch
    names = [column.name for column in item.described.columns if column.name in batch.schema.names]
    values = [batch.column(name).to_pylist() for name in names]
    table = (item.table.db, item.table.table)
    for place, (op, seq) in enumerate(zip(batch["_op"].to_pylist(), batch["_seq"].to_pylist(), strict=True)):
        row = {name: column[place] for name, column in zip(names, values, strict=True)}
        yield seq, OurRow(table, _NAMES[op], item.described.columns, row)


def differences(
    path: Path, reader: LogReader, *, mariadb: bool, apart: Collection[str] = (), at_most: int = 10
) -> tuple[int, list[str]]:
    """How many rows both have read, and how the two readings differ."""
    problems: list[str] = []
    rows, cut = 0, None
    try:
        ours = list(our_rows(path, mariadb=mariadb, apart=apart))
    except DataError as error:
        return 0, [f"raycdc cannot read it: {error}"]
    at = 0
    for theirs in reader.rows(path):
        if theirs.table[0] in apart:
            continue
        while cut and at < len(ours) and ours[at].table == cut.table and not _equal(theirs, ours[at]):
            # The other reader gives the rest of an event up behind a value that it cannot print.
            at += 1
        if theirs.taken_back and (at == len(ours) or not _equal(theirs, ours[at])):
            continue
        mine = ours[at] if at < len(ours) else None
        if mine is None or (theirs.table, theirs.op) != (mine.table, mine.op):
            problems.append(f"row {rows}: mysqlbinlog has {_head(theirs)}, raycdc has {_head(mine)}")
            return rows, problems
        rows, at = rows + 1, at + 1
        problems += [f"row {rows}, {theirs.op} of {theirs.table}: {problem}" for problem in _differing(theirs, mine)]
        cut = theirs if any(text.startswith(b"!!") for text, _ in theirs.values.values()) else None
        if len(problems) >= at_most:
            return rows, problems
    while cut and at < len(ours) and ours[at].table == cut.table:
        at += 1
    if at < len(ours):
        problems.append(f"raycdc has {len(ours) - at} rows more, the first is {_head(ours[at])}")
    return rows, problems


def _equal(theirs: PrintedRow, ours: OurRow) -> bool:
    return (theirs.table, theirs.op) == (ours.table, ours.op) and not _differing(theirs, ours)


def _head(row: PrintedRow | OurRow | None) -> str:
    return "no row" if row is None else f"{row.op} of {'.'.join(row.table)}"


def _differing(theirs: PrintedRow, ours: OurRow) -> list[str]:
    problems = []
    for number, column in enumerate(ours.columns, start=1):
        if number not in theirs.values:
            # An image that has not all columns, or what comes behind a value that cannot be printed.
            if ours.values.get(column.name) is not None and not _unprintable(theirs):
                problems.append(f"column {number} is {ours.values[column.name]!r}, and mysqlbinlog has none")
            continue
        text, kind = theirs.values[number]
        if not same(text, kind, ours.values.get(column.name), column):
            problems.append(f"column {number} is {ours.values.get(column.name)!r} and {text!r} ({kind})")
    return problems


def _unprintable(row: PrintedRow) -> bool:
    return any(text.startswith((b"!!", b"JSON_", b"@")) for text, _ in row.values.values())


def same(text: bytes, kind: str, ours: Any, column: MySqlColumn) -> bool:
    """Whether a printed value is the one that we have decoded."""
    if text.startswith((b"!!", b"JSON_", b"@")):
        return True
    if text == b"NULL" or ours is None:
        return text == b"NULL" and ours is None
    compare = _COMPARED.get(kind.split(" ", maxsplit=1)[0].split("(", maxsplit=1)[0], _same_bytes)
    return compare(text, ours, column)


def _same_integer(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    # A negative one is printed as if it had no sign, too.
    return str(int(ours)) in text.decode().replace("(", "").replace(")", "").split()


def _same_year(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    # 1900 and the byte of the log, also where that is 0: the year 0000.
    return int(text) == (int(ours) or 1900)


def _same_float(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return f"{ours:g}" == f"{float(text):g}"


def _same_double(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return float(text) == float(ours)


def _same_decimal(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return Decimal(text.decode()) == Decimal(str(ours))


def _same_date(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return text[1:-1].decode().replace(":", "-") == str(ours)


def _same_clock(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return _clock(text.strip(b"'").decode()) == _clock(str(ours))


def _same_moment(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    return Decimal(text.decode()) == _seconds(str(ours))


def _same_label(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    # Without a number it is an invalid value, which prints as the empty text; that may be a label, too.
    return int(text) == _label_number(ours, column) or (int(text) == 0 and ours == "")


def _same_labels(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    # Byte by byte, the lowest first.
    digits = text[2:-1]
    groups = bytes(int(digits[at : at + 8], 2) for at in range(0, len(digits), 8))
    return int.from_bytes(groups, "little") == _label_bits(ours, column)


def _same_bits(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    # 64 bits of ours are signed.
    bits = int.from_bytes(ours, "big") if isinstance(ours, bytes) else int(ours) % (1 << 64)
    return int(text[2:-1] or b"0", 2) == bits


def _same_document(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    escaped = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), text[1:-1])
    return bool(json.loads(escaped) == json.loads(ours))


def _same_bytes(text: bytes, ours: Any, column: MySqlColumn) -> bool:
    if isinstance(ours, str):
        codec = _CODECS.get(column.charset)
        if codec is None or "�" in ours:
            return True
        try:
            wanted = ours.encode(codec)
        except UnicodeEncodeError:
            return True
    else:
        wanted = bytes(ours)
    # A fixed length is made up again by the reader: the log has no padding.
    candidates = {wanted, wanted.rstrip(b"\0")} if column.column_type.startswith("binary") else {wanted}
    return any(text in (_quoted(candidate, raw=raw) for raw in (True, False)) for candidate in candidates)


def _quoted(value: bytes, *, raw: bool) -> bytes:
    """As mysqlbinlog writes it: MariaDB's leaves quotes and backslashes as they are (`raw`)."""
    out = bytearray(b"'")
    for byte in value:
        if byte < 0x20 or (not raw and byte in b"'\\"):
            out += f"\\x{byte:02x}".encode()
        else:
            out.append(byte)
    return bytes(out + b"'")


def _clock(text: str) -> str:
    whole, _, part = text.partition(".")
    return f"{whole}.{part}".rstrip("0").rstrip(".") if part else whole


def _seconds(text: str) -> Decimal:
    if text.startswith("0000"):
        return Decimal(0)
    whole, _, part = text.replace("T", " ").removesuffix("+00:00").partition(".")
    moment = dt.datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=dt.UTC)
    return Decimal(int(moment.timestamp())) + Decimal(f"0.{part or 0}")


def _label_number(ours: Any, column: MySqlColumn) -> int:
    if isinstance(ours, int):
        return ours
    labels = _labels(column)
    return labels.index(ours) + 1 if ours in labels else 0


def _label_bits(ours: Any, column: MySqlColumn) -> int:
    if isinstance(ours, int):
        return ours % (1 << 64)
    labels = _labels(column)
    return sum(1 << labels.index(label) for label in ours.split(",") if label)


def _labels(column: MySqlColumn) -> Sequence[str]:
    return column.shape.labels


#: How a value is compared, by the first word of the type that mysqlbinlog prints; all others are bytes.
_COMPARED: Mapping[str, Callable[[bytes, Any, MySqlColumn], bool]] = {
    **dict.fromkeys(("TINYINT", "SHORTINT", "MEDIUMINT", "INT", "LONGINT"), _same_integer),
    "YEAR": _same_year,
    "FLOAT": _same_float,
    "DOUBLE": _same_double,
    "DECIMAL": _same_decimal,
    "DATE": _same_date,
    "DATETIME": _same_clock,
    "TIME": _same_clock,
    "TIMESTAMP": _same_moment,
    "ENUM": _same_label,
    "SET": _same_labels,
    "BIT": _same_bits,
    "JSON": _same_document,
}
