"""What is asked of servers of each version, and which are refused."""

from __future__ import annotations

from typing import Any, cast

import bson
import pytest

from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import silently_capped
from raycdc.connectors.mongodb.server.checks import _followable
from raycdc.connectors.mongodb.server.client import Client, MongoDbServerInfo, probe
from raycdc.connectors.mongodb.source import MongoDbSource
from raycdc.connectors.mongodb.stream.raw_stream import RawStream, Scope, StreamOptions, stream_options
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import StreamSplit

EVENT = {"_data": "82612F653E000000022B022C0100296E5A1004" + "00" * 16 + "46645F696400" + "04"}
INVALIDATION = {"_data": "82612F653E000000022B022C0100296F5A1004" + "00" * 16 + "04"}
PLACE = (1630496062, 2)


def info(*version: int, mongos: bool = False) -> MongoDbServerInfo:
    return MongoDbServerInfo("db:27017", version, "" if mongos else "rs0", mongos)


class FakeClient:
    """A server that says it is of `version`, and takes down what it is asked to aggregate."""

    nodes = frozenset({("db", 27017)})

    def __init__(self, *version: int) -> None:
        self.version = version
        self.asked: list[dict[str, Any]] = []
        self.admin = self

    def __getitem__(self, name: str) -> Any:
        return self

    def start_session(self) -> Any:
        return self

    def command(self, name: str) -> dict[str, Any]:
        return {"setName": "rs0"} if name == "hello" else {"operationTime": bson.Timestamp(*PLACE)}

    def server_info(self) -> dict[str, Any]:
        return {"versionArray": [*self.version, 0]}

    def list_collections(self, **options: Any) -> list[dict[str, Any]]:
        name = options.get("filter", {}).get("name")
        return [{"name": name, "type": "collection", "options": {"capped": True}}] if name == "capped" else []

    def cursor_command(self, command: dict[str, Any], *, session: Any) -> Any:
        self.asked.append(command)
        raise AskedError

    def end_session(self) -> None:
        pass

    def close(self) -> None:
        pass


def config_of(*collections: str) -> MongoDbSourceConfig:
    return MongoDbSourceConfig.model_validate(
        {"type": "mongodb", "uri": "mongodb://db", "collections": list(collections)}
    )


class AskedError(Exception):
    pass


def test_servers_before_4_0_are_refused() -> None:
    with pytest.raises(SourceError, match=r"db:27017 is MongoDB 3\.6\.23; raycdc needs 4\.0 or later"):
        probe(cast("Client", FakeClient(3, 6, 23)))
    assert probe(cast("Client", FakeClient(4, 0, 0))).version == (4, 0, 0)


@pytest.mark.parametrize(("version", "warned"), [((4, 0, 6), 1), ((4, 0, 7), 0), ((4, 2, 0), 0)])
def test_servers_before_4_0_7_are_warned_of(
    version: tuple[int, ...], warned: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raycdc.connectors.mongodb.source.connect", lambda _: FakeClient(*version))
    config = {"type": "mongodb", "uri": "mongodb://db", "collections": ["shop.orders"]}
    source = MongoDbSource(MongoDbSourceConfig.model_validate(config))
    position = StreamPosition(ordinal_of(*PLACE), replica_set="rs0").sealed()
    with pytest.raises(AskedError):
        source.log_reader(StreamSplit(StreamState(position, 0)))
    assert len([r for r in caplog.records if "a quiet stream keeps no position" in r.message]) == warned


@pytest.mark.parametrize(("version", "named"), [((4, 4, 29), 1), ((5, 0, 0), 0), ((8, 0, 0), 0)])
def test_capped_collections_are_named_where_the_server_reports_no_dropped_document(
    version: tuple[int, ...], named: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = cast("Client", FakeClient(*version))
    capped = TableId("shop", "capped")
    texts = silently_capped(client, info(*version), [capped, TableId("shop", "orders")])
    assert list(texts) == [capped] * named
    monkeypatch.setattr("raycdc.connectors.mongodb.server.checks.RawStream", lambda *_, **__: client)
    findings = _followable(client, info(*version), config_of("shop.capped"), [capped])
    assert [finding.required for finding in findings if "is a capped collection" in finding.text] == [False] * named
    monkeypatch.setattr("raycdc.connectors.mongodb.source.connect", lambda _: client)
    monkeypatch.setattr("raycdc.connectors.mongodb.source.layouts_of", lambda _: {})
    position = StreamPosition(ordinal_of(*PLACE), replica_set="rs0").sealed()
    state = StreamState(position, 0, followed={capped: cast("Any", None)})
    with pytest.raises(AskedError):
        MongoDbSource(config_of("shop.capped")).log_reader(StreamSplit(state))
    warnings = [r for r in caplog.records if "shop.capped is a capped collection" in r.getMessage()]
    assert len(warnings) == named


@pytest.mark.parametrize(
    ("version", "token", "begins"),
    [
        ((4, 0, 7), None, {"startAtOperationTime": bson.Timestamp(1630496062, 3)}),
        ((4, 0, 7), EVENT, {"resumeAfter": EVENT}),
        ((4, 0, 7), INVALIDATION, {"startAtOperationTime": bson.Timestamp(1630496062, 3)}),
        ((4, 2, 0), EVENT, {"startAfter": EVENT}),
        ((4, 2, 0), INVALIDATION, {"startAfter": INVALIDATION}),
        ((8, 0, 0), None, {"startAtOperationTime": bson.Timestamp(1630496062, 3)}),
        ((8, 0, 0), INVALIDATION, {"startAfter": INVALIDATION}),
    ],
)
def test_a_stream_begins_in_the_way_that_the_server_has(
    version: tuple[int, ...], token: dict[str, Any] | None, begins: dict[str, Any]
) -> None:
    options = StreamOptions(Scope("shop", "orders"))
    place = None if token is None else ResumeToken.of(token)
    stage = options.pipeline(info(*version), token=place, after=ordinal_of(*PLACE))[0]["$changeStream"]
    ways = ("startAtOperationTime", "startAfter", "resumeAfter")
    assert {way: stage[way] for way in ways if way in stage} == begins


@pytest.mark.parametrize(
    ("version", "images", "lean", "stage", "rest"),
    [
        ((4, 0, 7), False, False, {"fullDocument": "updateLookup"}, {}),
        ((5, 0, 0), False, False, {"fullDocument": "updateLookup"}, {}),
        ((6, 0, 8), False, False, {"fullDocument": "updateLookup", "showExpandedEvents": True}, {}),
        (
            (7, 0, 0),
            True,
            False,
            {
                "fullDocument": "whenAvailable",
                "fullDocumentBeforeChange": "whenAvailable",
                "showExpandedEvents": True,
            },
            {"$changeStreamSplitLargeEvent": {}},
        ),
        ((6, 0, 8), True, True, {"showExpandedEvents": True}, {}),
        ((4, 2, 0), False, True, {}, {}),
    ],
)
def test_a_stream_is_asked_for_what_the_server_has(
    version: tuple[int, ...], images: bool, lean: bool, stage: dict[str, Any], rest: dict[str, Any]
) -> None:
    options = StreamOptions(Scope("shop"), images=images, lean=lean)
    first, *others = options.pipeline(info(*version), token=None, after=0)
    found = first["$changeStream"]
    found.pop("startAtOperationTime")
    assert found == stage
    left_out = {"updateDescription": 0, "fullDocument": 0} if lean else {"updateDescription": 0}
    assert others == [{"$project": left_out}, *([rest] if rest else [])]


@pytest.mark.parametrize(("version", "named"), [((4, 0, 7), True), ((4, 2, 0), False)])
def test_before_4_2_a_stream_names_its_collation_since_none_is_known_behind_a_drop(
    version: tuple[int, ...], named: bool
) -> None:
    client = FakeClient(*version)
    options = StreamOptions(Scope("shop", "orders"))
    with pytest.raises(AskedError):
        RawStream(cast("Client", client), info(*version), options, token=ResumeToken.of(EVENT), after=0)
    assert client.asked[0]["aggregate"] == "orders"
    assert (client.asked[0].get("collation") == {"locale": "simple"}) == named


def test_names_are_matched_as_they_are() -> None:
    options = StreamOptions(Scope("shop"), only=(TableId("shop", "a.b$*"), TableId("shop", "c")))
    wanted = {"$in": ["a.b$*", "c"]}
    assert options.pipeline(info(7, 0, 0), token=None, after=0)[1] == {
        "$match": {
            "$or": [
                {"ns.db": "shop", "ns.coll": wanted},
                {"to.db": "shop", "to.coll": wanted},
                {"operationType": {"$in": ["dropDatabase", "invalidate"]}},
            ]
        }
    }


@pytest.mark.parametrize(
    ("selected", "databases"),
    [
        ([r"crm\.user_.*", r"hr\.a|b", "shop.orders"], None),
        ([r"crm\.user_.*", r"hr\.(a|b)", "shop.orders"], ["crm", "hr", "shop"]),
        ([r"crm\.user_.*"], None),
    ],
)
def test_of_several_databases_the_server_sends_no_others(selected: list[str], databases: list[str] | None) -> None:
    options = stream_options(cast("Client", FakeClient(5, 0)), info(5, 0, 0), TableSelector(selected))
    stages = options.pipeline(info(5, 0, 0), token=None, after=0)
    matches = [stage["$match"] for stage in stages if "$match" in stage]
    wanted = {"$in": databases}
    expected = {"$or": [{"ns.db": wanted}, {"to.db": wanted}, {"operationType": "invalidate"}]}
    assert matches == ([expected] if databases else [])
