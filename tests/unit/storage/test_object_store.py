"""Conditional writes on an object store: a lost reply, 409 and 412 are told from a lost race."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from obstore.store import MemoryStore

from raycdc.storage.api import (
    TRIES,
    ConfirmedWrite,
    ObjectWritten,
    PreconditionFailed,
    Stored,
    StoreError,
    UnconfirmedWrite,
    Version,
    resolve_write,
)
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import ObjectLocation, StoreKind

PLACE = ObjectLocation(StoreKind.S3, "lake", "shop")
DOUBT = UnconfirmedWrite(StoreError("the server said 409"))


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(PLACE, client=MemoryStore())


def test_a_name_is_given_once(store: ObjectStore) -> None:
    first = store.put_if_absent("gen/1.json", b"ours")
    assert isinstance(first, ObjectWritten)
    assert store.put_if_absent("gen/1.json", b"theirs") == PreconditionFailed(Stored(b"ours", first.version))
    # The same bytes again are the same write, whose reply was lost.
    assert store.put_if_absent("gen/1.json", b"ours") == first
    assert store.read("gen/1.json") == Stored(b"ours", first.version)


def test_what_changed_meanwhile_is_not_replaced(store: ObjectStore) -> None:
    first = store.put("root.json", b"1")
    second = store.replace_if_match("root.json", b"2", first.version)
    assert isinstance(second, ObjectWritten)
    assert store.replace_if_match("root.json", b"3", first.version) == PreconditionFailed(Stored(b"2", second.version))
    assert store.replace_if_match("root.json", b"2", first.version) == second
    store.delete("root.json")
    assert store.replace_if_match("root.json", b"4", second.version) == PreconditionFailed(None)
    assert store.read("root.json") is None


def test_names_are_listed_below_a_folder(store: ObjectStore) -> None:
    for name in ("a/2", "a/1", "ab/3", "b"):
        store.put(name, b"x")
    assert store.list("a") == ["1", "2"]
    assert store.list("") == ["a/1", "a/2", "ab/3", "b"]
    assert store.list("nothing") == []
    store.delete("a/1")
    store.delete("a/1")
    assert store.list("a") == ["2"]


class Object:
    """One object, and what is answered to each write: `played` says whether it was carried out."""

    def __init__(self, *played: tuple[ConfirmedWrite | UnconfirmedWrite, bool], data: bytes | None = None) -> None:
        self._played = deque(played)
        self._number = 1
        self.current = None if data is None else Stored(data, Version("1"))

    def change(self, data: bytes) -> None:
        self._number += 1
        self.current = Stored(data, Version(str(self._number)))

    def write(self, data: bytes, meanwhile: Callable[[], None] = lambda: None) -> ObjectWritten | PreconditionFailed:
        before = None if self.current is None else self.current.version

        def attempt() -> ConfirmedWrite | UnconfirmedWrite:
            answer, done = self._played.popleft()
            meanwhile()
            if done and (None if self.current is None else self.current.version) == before:
                self.change(data)
            return answer

        return resolve_write(attempt, lambda: self.current, data, before=before)


@pytest.mark.parametrize("data", [None, b"before"])
def test_a_write_whose_reply_was_lost_is_ours(data: bytes | None) -> None:
    assert Object((DOUBT, True), data=data).write(b"ours") == ObjectWritten(Version("2"))


@pytest.mark.parametrize("data", [None, b"before"])
def test_a_409_after_which_nothing_changed_is_tried_again(data: bytes | None) -> None:
    assert Object((DOUBT, False), (DOUBT, False), (DOUBT, True), data=data).write(b"ours") == ObjectWritten(
        Version("2")
    )


@pytest.mark.parametrize("data", [None, b"before"])
def test_another_who_was_first_has_won(data: bytes | None) -> None:
    one = Object((DOUBT, True), data=data)
    assert one.write(b"ours", lambda: one.change(b"theirs")) == PreconditionFailed(Stored(b"theirs", Version("2")))


def test_an_object_that_is_gone_is_taken() -> None:
    one = Object((DOUBT, False), data=b"before")

    def vanish() -> None:
        one.current = None

    assert one.write(b"ours", vanish) == PreconditionFailed(None)


def test_a_store_that_only_errs_is_given_up_with_its_own_words() -> None:
    one = Object(*[(DOUBT, False)] * TRIES, data=b"before")
    with pytest.raises(StoreError, match="the server said 409"):
        one.write(b"ours")


def test_errors_name_the_object_and_hide_the_query() -> None:
    from raycdc.storage import object_store

    text = "Error performing GET https://acc.blob/lake/a?sv=2024&sig=s3cr3t: 403 Forbidden\n\nDebug source: sig=s3cr3t"
    assert object_store.shown(ValueError(text)) == "Error performing GET https://acc.blob/lake/a 403 Forbidden"


def test_a_server_that_is_not_there_is_named() -> None:
    settings = StorageSettings(
        endpoint="http://127.0.0.1:1", access_key_id="AK", secret_access_key="s3cr3t", allow_http=True
    )
    with pytest.raises(StoreError, match=r"s3://lake/shop/root\.json cannot be read: .*127\.0\.0\.1:1") as away:
        ObjectStore(PLACE, settings, tries_for_s=0).read("root.json")
    assert "s3cr3t" not in str(away.value)
    assert not away.value.lasting
