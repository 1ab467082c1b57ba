"""The suite that each sink is held to, on an object store: what its sinks have in common there."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from obstore.store import S3Store

from raycdc.model import TableId
from raycdc.sandbox.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from raycdc.storage.settings import StorageSettings
from raycdc.testing.sink_conformance import SinkConformance
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

IN_STORES = {
    "rename": "Objects cannot be renamed.",
    "revoke": "The servers of the tests know one key, which may do everything.",
    "unreachable": "The story of a store that fails for a while is played instead.",
}


class OnS3(SinkConformance):
    """Each test has a bucket of its own."""

    impossible: ClassVar[Mapping[str, str]] = IN_STORES

    @pytest.fixture(autouse=True)
    def _store(self, proxy: StoreProxy) -> None:
        self.proxy = proxy
        self.buckets: set[str] = set()
        self.folders: set[Path] = set()

    def bucket(self, folder: Path) -> str:
        name = f"lake-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        if name not in self.buckets:
            self.proxy.create_bucket(name)
            self.buckets.add(name)
        return name

    def storage(self, folder: Path) -> StorageSettings:
        return self.proxy.settings

    def test_a_store_that_fails_for_a_while_is_waited_for(self, tmp_path: Path) -> None:
        """Replies of conditional puts are lost, and more requests fail than a library repeats by itself."""
        play = self._play(tmp_path)
        play.epochs(2)
        lost = Rule(Fault.LOST_REPLY, conditional=True, times=3)
        metadata = Rule(Fault.ERROR, path=r"\.avro$", times=8)
        rows = [Rule(Fault.ERROR, path=path) for path in (r"\.staged$", r"\.parquet$")]
        with self.proxy.play(lost, metadata, *rows):
            play.run()
        self._check(play)
        assert lost.played in (0, 3)
        assert metadata.played in (0, 8)
        assert any(rule.played for rule in rows)

    def objects(self, folder: Path) -> S3Store:
        """The bucket, as anybody reaches it."""
        return S3Store(
            self.bucket(folder),
            endpoint=self.proxy.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region=REGION,
            client_options={"allow_http": True},
        )

    def keys(self, folder: Path, target: TableId) -> list[str]:
        """All that is of a target, by its key in the bucket."""
        store = self.objects(folder)
        return [meta["path"] for chunk in store.list(f"lake/{target.db}/{target.table}") for meta in chunk]

    def lose(self, folder: Path, target: TableId) -> None:
        self.objects(folder).delete(self.keys(folder, target))


def play_only(suite: type[SinkConformance], names: Collection[str]) -> None:
    """Leave the other tests of the suite out of a class, which is played in each run of the tests."""
    for name in dir(suite):
        if name.startswith("test_") and name not in names and name not in vars(suite):
            setattr(suite, name, None)
