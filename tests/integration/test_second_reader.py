"""Every log of the fuzz's corpus is read by the server's own ``mysqlbinlog``, too, and both have the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.fuzz.binlog import CORPUS
from tests.fuzz.second_reader import LogReader, PrintedRow, differences, our_rows
from tests.suites.package import suite_package

pytestmark = pytest.mark.server


def _reader(*, mariadb: bool) -> LogReader:
    if mariadb:
        return LogReader.of_mariadb(suite_package())
    reader = LogReader.of_mysql()
    if reader is None:
        pytest.skip("MySQL 9 is not here: python -m tests.support.servers mysql-newest prepare")
    return reader


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: str(path.name))
def test_mysqlbinlog_has_the_same_rows(path: Path) -> None:
    mariadb = "mariadb" in path.name
    rows, problems = differences(path, _reader(mariadb=mariadb), mariadb=mariadb)
    assert problems == []
    # MySQL's own reader gives up an event behind its first geometry.
    assert rows == len(list(our_rows(path, mariadb=mariadb))) if mariadb else rows > 10


@dataclass(frozen=True, slots=True)
class Bent(LogReader):
    """A reader of which one row, or a single value, is not what lies in the log."""

    bend: Callable[[list[PrintedRow]], list[PrintedRow]] = list

    def rows(self, path: Path) -> Iterator[PrintedRow]:
        yield from self.bend(list(LogReader(self.command, self.environment).rows(path)))


def _value(number: int, text: bytes) -> Callable[[list[PrintedRow]], list[PrintedRow]]:
    def bend(rows: list[PrintedRow]) -> list[PrintedRow]:
        kind = rows[0].values[number][1]
        return [replace(rows[0], values={**rows[0].values, number: (text, kind)}), *rows[1:]]

    return bend


@pytest.mark.parametrize(
    ("bend", "word"),
    [
        (_value(2, b"7 (7)"), "column 2 is -1"),
        (_value(6, b"1.25"), "column 6"),
        (_value(9, b"12345678901234567890.123456789000000000000000000001"), "column 9"),
        (_value(12, b"'\\x00\xff\\x11'"), "column 12"),
        (_value(16, b"'2023-12-31 23:59:59.123457'"), "column 16"),
        (_value(17, b"1704164645.679"), "column 17"),
        (_value(21, b"1"), "column 21"),
        (_value(22, b"b'00000111'"), "column 22"),
        (_value(24, b"NULL"), "column 24"),
        (lambda rows: rows[:-1], "raycdc has 1 rows more"),
        (lambda rows: [*rows, rows[0]], "raycdc has no row"),
        (lambda rows: [replace(rows[0], op="-D"), *rows[1:]], "mysqlbinlog has -D of d.t, raycdc has +I of d.t"),
    ],
)
def test_a_reading_that_differs_is_noticed(bend: Callable[[list[PrintedRow]], list[PrintedRow]], word: str) -> None:
    reader = _reader(mariadb=True)
    _, problems = differences(
        CORPUS / "mariadb-crc32.000001", Bent(reader.command, reader.environment, bend), mariadb=True
    )
    assert [problem for problem in problems if word in problem]
