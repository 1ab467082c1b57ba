"""May this user write a pipeline's collections, in transactions? Looks, creates nothing. Used by ``raycdc check``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from pymongo.errors import OperationFailure, PyMongoError

from raycdc.config.mongodb_uri import open_hosts
from raycdc.model import TableId
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.server import Document, Server
from raycdc.source.checks import CheckResult, readable_on_the_way


class _Resource(TypedDict, total=False):
    db: str
    collection: str
    anyResource: bool  # the server's name


class Privilege(TypedDict):
    """A privilege of a user as the server tells it: the actions that are allowed on a resource."""

    resource: _Resource
    actions: Sequence[str]


#: The actions on a target, and on the record; ``readWrite`` has all of them.
ACTIONS = ("createCollection", "find", "insert", "listCollections", "remove", "update")
SINGLE_SERVER = (
    "A single server has no transactions, which keep rows and record together. Make it a replica set of one: start "
    "mongod with --replSet rs0, then run rs.initiate()."
)
_FIX_URI = "Correct sink.uri; for a user of another database than the target's add authSource=admin to it."


def check_sink(config: MongoDbSinkConfig, tables: Sequence[TableId]) -> list[CheckResult]:
    """All findings; `tables` are the targets that are known now."""
    server = Server(config.uri.reveal(), config.record)
    hosts = open_hosts(config.uri.reveal())
    fix = "Add tls=true to sink.uri, and tlsCAFile where the authority is your own."
    way = readable_on_the_way(f"MongoDB at {server.where}", hosts, encrypted=not hosts, fix=fix)
    return [*_user(server, config, tables), *way]


def _user(server: Server, config: MongoDbSinkConfig, tables: Sequence[TableId]) -> list[CheckResult]:
    """May the user connect, and write the collections in transactions? The server is closed."""
    try:
        hello = server.client.admin.command("hello")
        described = _status(server)
    except OperationFailure as cause:
        return [CheckResult("sink", f"MongoDB at {server.where}: {server.text_of(cause)}.", _FIX_URI)]
    except PyMongoError as cause:
        told = server.refused(cause) or server.text_of(cause).partition(", Timeout: ")[0][:300]
        text = f"MongoDB at {server.where} cannot be reached: {told.rstrip('.')}."
        return [CheckResult("sink", text, _FIX_URI)]
    finally:
        server.close()
    findings = [CheckResult("sink", f"Connected to MongoDB at {server.where}.", ok=True)]
    if not ("setName" in hello or hello.get("msg") == "isdbgrid"):
        findings.append(CheckResult("transactions", f"MongoDB at {server.where} is no replica set.", SINGLE_SERVER))
    known = described.get("authInfo", {})
    if user := next((one["user"] for one in known.get("authenticatedUsers", [])), None):
        # One that cannot be a collection is parked, of which the look at the tables tells.
        targets = [table for table in tables if not config.names.no_table(table)]
        databases = sorted({config.record, *(table.db for table in targets)})
        findings += lacking(user, known.get("authenticatedUserPrivileges", []), databases)
    return findings


def _status(server: Server) -> Document:
    """Who the client is and may do; nothing where the server does not know."""
    try:
        return server.client.admin.command({"connectionStatus": 1, "showPrivileges": True})
    except OperationFailure as cause:
        if cause.code != _UNKNOWN_COMMAND:
            raise
        return {}


def lacking(user: str, privileges: Iterable[Privilege], databases: Sequence[str]) -> list[CheckResult]:
    """The actions that `user` may not do in each of `databases`; one good finding where nothing is missing."""
    privileges = list(privileges)
    findings = []
    for database in databases:
        allowed = {
            action
            for privilege in privileges
            if privilege["resource"].get("db") in ("", database) and privilege["resource"].get("collection") == ""
            for action in privilege["actions"]
        }
        anything = any(privilege["resource"].get("anyResource") for privilege in privileges)
        missing = [action for action in ACTIONS if action not in allowed]
        if missing and not anything:
            grant = f'db.getSiblingDB("admin").grantRolesToUser("{user}", [{{role: "readWrite", db: "{database}"}}])'
            text = f"{user} may not {', '.join(missing)} in database {database}."
            findings.append(CheckResult("sink privileges", text, grant))
    return findings or [CheckResult("sink privileges", f"{user} may write what the sink needs.", ok=True)]


_UNKNOWN_COMMAND = 59
