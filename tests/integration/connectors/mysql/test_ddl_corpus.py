"""DDL replayed on real servers: tables as followed are tables as the server describes them, or it is refused."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.connectors.mysql.ddl.parse.tokens import split_statements
from raycdc.sandbox.servers import DatabaseServer
from tests.support.ddl_generator import DdlGenerator
from tests.support.ddl_replay import DdlReplay, ReplayOutcome, ReplayVerdict, summary

CORPUS = sorted((Path(__file__).parent / "ddl").glob("*.sql"))
GENERATED = 60

#: Statements of the corpus that are written to be refused: they do not say their columns, or ask for what no reader of
#: a log can follow.
REFUSED = (
    *("SELECT", "TABLE keys4", "BIGINT UNSIGNED GENERATED ALWAYS AS ROW", "PERIOD FOR app"),
    *("SET DEFAULT", "SET binary", "conv1 CONVERT", "UUID"),
)
#: Of these what the server is asked about when they are logged, and what is no table of current rows.
LEFT_TO_OTHERS = ("SET DEFAULT", "BIGINT UNSIGNED GENERATED ALWAYS AS ROW", "PERIOD FOR app")


@pytest.fixture(params=["mariadb", "mysql80", "mysql57", "mysql_newest"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, DatabaseServer)
    return chosen


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    with server.fresh_database("ddl") as name:
        yield name


def replay(server: DatabaseServer, database: str, statements: Iterator[str]) -> list[ReplayOutcome]:
    session = DdlReplay(server, database)
    try:
        return list(session.run(statements))
    finally:
        session.close()


def wrong(outcomes: list[ReplayOutcome]) -> list[ReplayOutcome]:
    return [outcome for outcome in outcomes if outcome.verdict is ReplayVerdict.WRONG]


def refused(outcomes: list[ReplayOutcome]) -> list[ReplayOutcome]:
    return [outcome for outcome in outcomes if outcome.verdict is ReplayVerdict.REFUSED]


@pytest.mark.long_variants("mysql57", "mysql_newest", suite="servers")
def test_the_corpus_is_followed_as_written_and_as_logged(server: DatabaseServer, database: str) -> None:
    script = "\n".join(path.read_text(encoding="utf-8") for path in CORPUS).replace("{db}", database)
    statements = (statement for statement, _ in split_statements(script))
    outcomes = replay(server, database, statements)
    assert wrong(outcomes) == []
    assert [o for o in refused(outcomes) if not any(words in o.statement for words in REFUSED)] == []
    counts = summary(outcomes)
    assert counts["same"] > 450, counts
    logged = [outcome for outcome in outcomes if outcome.source == "log"]
    left = [o for o in refused(logged) if not any(words in o.statement for words in LEFT_TO_OTHERS)]
    shares = [1 - len(some) / len(logged) for some in (refused(logged), left)]
    sys.stdout.write(
        f"{server}: {len(logged)} statements, followed {shares[0]:.1%}, followed or asked {shares[1]:.1%}\n"
    )
    assert shares[1] >= 0.99


@pytest.mark.long_variants("mysql57", "mysql_newest", suite="servers")
def test_generated_statements_are_followed(server: DatabaseServer, database: str) -> None:
    generator = DdlGenerator(seed=20, mariadb=server.flavor == "mariadb")
    outcomes = replay(server, database, itertools.islice(generator, GENERATED))
    assert wrong(outcomes) == []
    counts = summary(outcomes)
    assert counts["refused"] <= 0.01 * (counts["same"] + counts["refused"]), refused(outcomes)
