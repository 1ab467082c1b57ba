"""The proxy before a store plays the faults that a test hands over, and says which requests it saw."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import obstore
import pytest
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import ObjectStore, S3Store

from raycdc.sandbox.servers import MotoServer
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as proxy:
        yield proxy


@pytest.fixture
def store(moto: MotoServer, proxy: StoreProxy, request: pytest.FixtureRequest) -> ObjectStore:
    bucket = moto.create_bucket(f"proxy-{abs(hash(request.node.name))}")
    return S3Store(
        bucket,
        endpoint=proxy.endpoint,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=20)},
    )


def put(store: ObjectStore, text: bytes = b"mine") -> str:
    """What the client of a put-if-absent is told, and what is in the store then."""
    try:
        obstore.put(store, "key", text, mode="create")
        told = "made"
    except BaseError as error:
        told = type(error).__name__
    try:
        found = bytes(obstore.get(store, "key").bytes()).decode()
    except FileNotFoundError:
        found = "nothing"
    return f"{told}, {found}"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.LOST_REPLY, "GenericError, mine"),
        (Fault.LOST_REQUEST, "GenericError, nothing"),
        (Fault.DONE_BUT_FAILED, "GenericError, mine"),
        (Fault.CONFLICT, "AlreadyExistsError, nothing"),
        (Fault.LOST_RACE, "AlreadyExistsError, nothing"),
        (Fault.ERROR, "GenericError, nothing"),
        (Fault.SLOW_DOWN, "GenericError, nothing"),
        (Fault.DENIED, "PermissionDeniedError, nothing"),
        (Fault.LATE, "made, mine"),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Fault) else "",
)
def test_a_fault_is_played_once_and_what_was_done_is_there(
    proxy: StoreProxy, store: ObjectStore, fault: Fault, expected: str
) -> None:
    with proxy.play(Rule(fault, conditional=True, delay_s=0.05)) as (rule,):
        assert put(store) == expected
        assert rule.played == 1
        obstore.put(store, "key", b"again")
    assert bytes(obstore.get(store, "key").bytes()) == b"again"


def test_a_rule_is_for_the_requests_that_it_names_after_those_it_lets_pass(
    proxy: StoreProxy, store: ObjectStore
) -> None:
    with proxy.play(Rule(Fault.DENIED, path="/log/", skip=1, times=2)) as (rule,):
        told = []
        for key in ("data/1", "log/1", "log/2", "data/2", "log/3", "log/4"):
            try:
                obstore.put(store, key, b"")
                told.append(key)
            except PermissionDeniedError:
                told.append("denied")
    assert told == ["data/1", "log/1", "denied", "data/2", "denied", "log/4"]
    assert rule.played == 2
    seen = [(one.method, one.path.split("/", 2)[2], one.status) for one in proxy.seen]
    assert seen[1:3] == [("PUT", "log/1", 200), ("PUT", "log/2", 403)]
