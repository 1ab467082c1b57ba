"""Eight clients race for each of two hundred keys of a store: one makes it, and one replaces what all have read.

Azurite decides each put in one step, as Azure does. moto and S3Mock do not: what makes them as strict as S3 is the
proxy, so the last test shows that without it several win.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from obstore.store import AzureStore, ObjectStore, S3Store

from raycdc.sandbox.servers import AzuriteServer, MotoServer, S3MockServer
from raycdc.sandbox.servers.s3 import S3Server
from tests.integration.storage.race import Race, race
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server

KEYS = 200
#: In each run of the tests the light server alone is asked, for fewer keys.
KEYS_OF_MOTO = 25


@pytest.fixture(scope="module")
def s3mock() -> Iterator[S3MockServer]:
    with S3MockServer() as server:
        yield server


def one_winner_each(result: Race, keys: int) -> bool:
    return result.not_won_once(keys) == ([], []) and not result.wrong


def at(server: S3Server, bucket: str) -> ObjectStore:
    return S3Store(
        bucket,
        endpoint=server.endpoint,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.mark.parametrize("keys", [KEYS_OF_MOTO, pytest.param(KEYS, marks=pytest.mark.long(suite="stores"))])
def test_one_client_wins_each_key_of_moto_behind_the_proxy(moto: MotoServer, keys: int) -> None:
    bucket = moto.create_bucket(f"race-{keys}")
    with StoreProxy(moto) as proxy:
        assert one_winner_each(race(lambda: at(proxy, bucket), keys), keys)


@pytest.mark.long(suite="stores")
def test_one_client_wins_each_key_of_s3mock_behind_the_proxy(s3mock: S3MockServer) -> None:
    bucket = s3mock.create_bucket("race")
    with StoreProxy(s3mock) as proxy:
        assert one_winner_each(race(lambda: at(proxy, bucket), KEYS), KEYS)


@pytest.mark.long(suite="stores")
def test_one_client_wins_each_key_of_azurite_as_it_is() -> None:
    with AzuriteServer() as azurite:
        container = azurite.create_container("race")

        def connect() -> ObjectStore:
            return AzureStore(
                container,
                account_name=azurite.account,
                account_key=azurite.key,
                endpoint=azurite.endpoint,
                client_options={"allow_http": True},
            )

        assert one_winner_each(race(connect, KEYS), KEYS)


@pytest.mark.long(suite="stores")
def test_without_its_turns_several_clients_win_at_s3mock(s3mock: S3MockServer) -> None:
    bucket = s3mock.create_bucket("disorder")
    with StoreProxy(s3mock, serialised=False) as proxy:
        made, _ = race(lambda: at(proxy, bucket), KEYS).not_won_once(KEYS)
    assert made, "S3Mock serialises conditional puts now: the proxy is not needed before it"
