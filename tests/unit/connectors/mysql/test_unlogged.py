"""Which databases a server's own filter leaves out of its log, and that the manual has the whole list of such gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

import raycdc
from raycdc.connectors.mysql.server.client import Flavor, MySqlServerInfo
from raycdc.connectors.mysql.server.unlogged import LOG_GAPS, LoggedTables
from raycdc.model import TableId

_MANUAL = Path(raycdc.__file__).parent / "manual" / "mysql.md"


def server(**variables: str) -> MySqlServerInfo:
    return MySqlServerInfo(
        Flavor.MYSQL, (8, 0, 36), "8.0.36", "db:3306", 1, "uuid", gtid_mode=True, log_bin=True, binlog_format="ROW",
        row_image="FULL", row_metadata="FULL", checksum="CRC32", expire_logs_s=0.0, variables=variables,
    )  # fmt: skip


@pytest.mark.parametrize("gap", LOG_GAPS, ids=lambda gap: gap.what[:30])
def test_the_manual_names_what_keeps_rows_out_of_a_log(gap: object) -> None:
    known = next(each for each in LOG_GAPS if each is gap)
    assert f"| {known.what} | {known.why} | {known.effect.value} |" in _MANUAL.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("do", "ignore", "variables", "left_out"),
    [
        ((), (), {}, []),
        ((), ("a",), {}, ["a"]),
        (("a",), (), {}, ["A", "b"]),
        # Where the server is told both, it asks the second list only of a server that has no first one.
        (("a",), ("a",), {}, ["A", "b"]),
        ((), ("A",), {"lower_case_table_names": "0"}, ["A"]),
        ((), ("A",), {"lower_case_table_names": "1"}, ["A", "a"]),
        (("A",), (), {"lower_case_table_names": "2"}, ["b"]),
    ],
)
def test_databases_that_a_filter_leaves_out(
    do: tuple[str, ...], ignore: tuple[str, ...], variables: dict[str, str], left_out: list[str]
) -> None:
    logged = LoggedTables(server(**variables), do, ignore)
    assert sorted(db for db in ("A", "a", "b") if logged.why_not(TableId(db, "t"))) == sorted(left_out)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("InnoDB", ""),
        ("", ""),
        ("BLACKHOLE", "its engine BLACKHOLE keeps no rows"),
        ("FEDERATED", "has its rows on another server"),
        ("Tomorrow", "its engine Tomorrow is not known to log each row"),
    ],
)
def test_an_engine_that_is_not_known_to_log_its_rows_is_not_followed(engine: str, why: str) -> None:
    told = LoggedTables(server()).why_not(TableId("d", "t"), engine)
    assert (why in told) if why else not told


def test_a_server_that_goes_on_without_its_log_is_warned_of() -> None:
    (told,) = LoggedTables(server(binlog_error_action="IGNORE_ERROR")).results()
    assert (told.name, told.required, "ABORT_SERVER" in told.fix) == ("log_errors", False, True)
