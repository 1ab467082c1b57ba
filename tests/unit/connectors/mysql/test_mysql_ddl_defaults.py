"""Constant defaults of added columns: what existing rows hold of them, or that this is not sure."""

from __future__ import annotations

import pytest

from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.model.evolution import AddColumnEvent
from tests.unit.connectors.mysql.test_mysql_ddl import alter


@pytest.mark.parametrize(
    ("definition", "fill"),
    [
        ("SET('a','b') DEFAULT 'b,a'", "a,b"),
        ("ENUM('A','B') DEFAULT 'b'", "B"),
        ("YEAR DEFAULT 24", "2024"),
        ("TIME(1) DEFAULT '-1:2'", "-01:02:00.0"),
        ("CHAR(5) DEFAULT 'ab  '", "ab"),
        ("BINARY(4) DEFAULT 'ab'", "ab\0\0"),
        ("DATE DEFAULT '2024-1-2'", "2024-01-02"),
        ("DECIMAL(5,2) DEFAULT 1.235", "1.24"),
        ("TIMESTAMP NULL DEFAULT '2024-01-01 00:00:00'", "2023-12-31 18:30:00"),
    ],
)
def test_a_default_is_what_the_server_stores(definition: str, fill: str) -> None:
    (event,) = alter(f"ADD c {definition}", dialect=DdlDialect(time_zone="+05:30")).events
    assert isinstance(event, AddColumnEvent)
    assert event.column.default == fill


@pytest.mark.parametrize(
    "definition",
    [
        "TIMESTAMP NULL DEFAULT '2024-01-01 00:00:00'",
        "DATETIME DEFAULT '2024-01-01 00:00:00.6'",
        "FLOAT(7,2) DEFAULT 1.239",
        "ENUM('a','b') DEFAULT 1",
        "TIME DEFAULT '10'",
        "CHAR(5) DEFAULT _utf16'ab'",
        "VARCHAR(5) DEFAULT 'abcdef'",
        "POINT NOT NULL",
    ],
)
def test_a_default_whose_stored_form_is_not_sure_makes_the_table_begin_again(definition: str) -> None:
    rewrites = alter(f"ADD c {definition}").rewrites
    assert rewrites is not None
    assert "what the server makes of" in rewrites or "the zero of point" in rewrites
