"""``raycdc check`` on a database to write, as a user meets it: whether it is reached, and the GRANT that is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raycdc.sandbox.servers import DatabaseServer, PostgresServer
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server


def check(server: DatabaseServer, database: str, folder: Path, url: str, user: str, password: str) -> tuple[int, str]:
    """The exit code, and what is said of the sink."""
    (folder / "p.toml").write_text(
        f'[pipeline]\nname = "p"\non_existing = "merge"\n'
        f'[source]\ntype = "mysql"\nhost = "{server.host}"\nport = {server.port}\n'
        f'user = "root"\npassword = "${{env:SOURCE_PASSWORD}}"\ntables = ["{database}.t"]\n'
        f'[sink]\ntype = "jdbc"\nurl = "jdbc:{url}"\nuser = "{user}"\npassword = "${{env:SINK_PASSWORD:-}}"\n'
    )
    environment = {**os.environ, "SOURCE_PASSWORD": server.root_password, "SINK_PASSWORD": password}
    done = completed(["check", "p.toml"], environment=environment, folder=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_check_reaches_the_target_and_names_missing_privileges(
    mariadb: DatabaseServer, mariadb_database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    mariadb.execute(f"CREATE TABLE {mariadb_database}.t (id BIGINT PRIMARY KEY)")
    with postgres.fresh_database() as home:
        postgres.execute("CREATE ROLE checked LOGIN PASSWORD 'geheim'")
        url = postgres.url(home)
        code, said = check(mariadb, mariadb_database, tmp_path, url, "checked", "geheim")
        grants = f'GRANT CREATE ON DATABASE "{home}" TO "checked";', 'GRANT CREATE ON SCHEMA "public" TO "checked";'
        assert (code, all(grant in said for grant in grants)) == (5, True), said
        postgres.execute(*grants, database=home)
        code, said = check(mariadb, mariadb_database, tmp_path, url, "checked", "geheim")
        assert (code, "checked may create what the sink needs" in said) == (0, True), said
        code, said = check(mariadb, mariadb_database, tmp_path, url, "checked", "wrong")
        assert (code, "cannot be reached" in said, "Correct sink.url" in said) == (5, True, True), said
        postgres.execute("DROP OWNED BY checked", database=home)
    postgres.execute("DROP ROLE checked")


def test_check_reaches_a_mysql_target(mariadb: DatabaseServer, mariadb_database: str, tmp_path: Path) -> None:
    mariadb.execute(f"CREATE TABLE {mariadb_database}.t (id BIGINT PRIMARY KEY)")
    url = f"mariadb://{mariadb.host}:{mariadb.port}/{mariadb_database}"
    code, said = check(mariadb, mariadb_database, tmp_path, url, "root", mariadb.root_password)
    assert (code, f"Connected to {url}" in said) == (0, True), said
    code, said = check(mariadb, mariadb_database, tmp_path, url, "nobody", "")
    assert (code, "refused user 'nobody'" in said) == (5, True), said


@pytest.mark.parametrize("flavor", ["mariadb", "mysql80"])
@pytest.mark.parametrize("by_role", [False, True])
def test_check_names_the_grants_that_a_mysql_target_lacks(
    request: pytest.FixtureRequest, flavor: str, by_role: bool, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(flavor)
    with server.fresh_database() as database, server.fresh_database("home_of") as home:
        server.execute(f"CREATE TABLE {database}.t (id BIGINT PRIMARY KEY)")
        server.execute("DROP USER IF EXISTS checked", "CREATE USER checked IDENTIFIED BY 'geheim'")
        server.execute("DROP ROLE IF EXISTS loading", "CREATE ROLE loading")
        server.execute(f"GRANT SELECT, CREATE ON `{home}`.* TO checked")
        url = f"mysql://{server.host}:{server.port}/{home}"
        code, said = check(server, database, tmp_path, url, "checked", "geheim")
        words = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, TRIGGER"
        grants = [f"GRANT {words} ON `{name}`.* TO 'checked'@'%';" for name in (home, database)]
        assert (code, all(grant in said for grant in grants)) == (5, True), said
        if by_role:
            grants = [grant.replace("'checked'@'%'", "loading") for grant in grants]
            grants += ["GRANT loading TO checked"]
            grants += [f"SET DEFAULT ROLE loading {'FOR' if flavor == 'mariadb' else 'TO'} checked"]
        server.execute(*(grant.rstrip(";") for grant in grants))
        code, said = check(server, database, tmp_path, url, "checked", "geheim")
        assert (code, "checked may create what the sink needs" in said) == (0, True), said
        server.execute("DROP USER checked", "DROP ROLE loading")


def test_check_names_a_table_with_a_transform_that_the_target_cannot_hold(
    mariadb: DatabaseServer, mariadb_database: str, tmp_path: Path
) -> None:
    """A computed text has no length, and a text in a key of MySQL needs one; a run parks such a table."""
    mariadb.execute(f"CREATE TABLE {mariadb_database}.t (id BIGINT PRIMARY KEY, name VARCHAR(9))")
    url = f"mariadb://{mariadb.host}:{mariadb.port}/{mariadb_database}"
    check(mariadb, mariadb_database, tmp_path, url, "root", mariadb.root_password)
    with (tmp_path / "p.toml").open("a") as file:
        file.write(
            f'[[transform]]\ntable = "{mariadb_database}.t"\nprojection = "*, concat(id, name) AS k"\n'
            'primary_keys = ["k"]\n[[route]]\n'
            f'table = "{mariadb_database}.t"\nto = "{mariadb_database}.made"\n'
        )
    environment = {**os.environ, "SOURCE_PASSWORD": mariadb.root_password, "SINK_PASSWORD": mariadb.root_password}
    done = completed(["check", "p.toml"], environment=environment, folder=tmp_path)
    assert "Traceback" not in done.stderr
    assert f"FAILED   {mariadb_database}.made: column k" in done.stdout, done.stdout
    assert "needs a length of at most 768" in done.stdout, done.stdout
    assert done.returncode == 4
