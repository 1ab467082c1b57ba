"""How tests are shared out over processes that have servers of their own."""

from __future__ import annotations

from tests.distribution import needs, preferred, unit

KAFKA = "tests/integration/connectors/kafka/test_kafka_source.py::test_a"
MONGODB = "tests/integration/connectors/mongodb/test_mongodb_source.py::test_a"
NEWEST = "tests/integration/connectors/mysql/test_mysql_chunks.py::test_a[mysql_newest]"
TYPES = "tests/integration/connectors/mysql/test_mysql_chunks.py::test_a[mariadb]"
KILLS = "tests/kill/test_kills.py::test_a"
UNITS = {unit(test): test for test in (MONGODB, KAFKA, TYPES)}


def test_a_process_gets_what_needs_the_servers_it_has() -> None:
    assert preferred(UNITS, {"kafka"}, {"kafka"}) == unit(KAFKA)
    assert preferred(UNITS, {"mongodb", "kafka"}, {"mongodb", "kafka"}) == unit(MONGODB)


def test_a_server_that_nobody_has_is_started_before_a_second_one_of_a_kind() -> None:
    assert preferred(UNITS, set(), {"mongodb"}) == unit(KAFKA)
    assert preferred(UNITS, {"mysql57"}, {"mysql57"}) == unit(MONGODB)


def test_a_process_without_rare_servers_gets_what_needs_none_before_it_starts_a_second_one() -> None:
    assert preferred(UNITS, set(), {"mongodb", "kafka"}) == unit(TYPES)
    units = {unit(test): test for test in (MONGODB, KAFKA)}
    assert preferred(units, set(), {"mongodb", "kafka"}) == unit(MONGODB)


def test_what_takes_long_is_given_out_first_whatever_servers_there_are() -> None:
    assert preferred({unit(KILLS): KILLS, **UNITS}, {"kafka"}, {"kafka"}) == unit(KILLS)


def test_tests_on_a_server_that_few_need_are_one_unit() -> None:
    assert needs(NEWEST) == {"mysql_newest"}
    assert unit(NEWEST) == unit("tests/integration/test_second_reader.py::test_b[mysql_newest]") == "mysql_newest"
    assert unit(TYPES) == "tests/integration/connectors/mysql/test_mysql_chunks.py"
