"""Whether an object store can be used: it is reached, it may be written, and it decides who makes an object.

A server that takes ``If-None-Match`` and does not look at it (S3's had none before 2024, and some that speak its API
have none now) would let two writers overwrite each other's commit in silence. So one object is put where nothing is,
then again by another: the store has to refuse that.
"""

from __future__ import annotations

import uuid

from raycdc.stores.api import Store, StoreError, Taken


def probe(store: Store) -> None:
    """Raises `StoreError` with the way out. Makes one object below ``_raycdc/`` and deletes it."""
    name = f"_raycdc/probe-{uuid.uuid4().hex}"
    store.put_if_absent(name, b"first")
    try:
        second = store.put_if_absent(name, b"second")
    finally:
        store.delete(name)
    if not isinstance(second, Taken):
        raise StoreError(
            f"{store.place} is on a server that overwrites an object where it was asked to make a new one "
            "(If-None-Match), so that two writers would lose each other's commits. Use a newer version of that server, "
            "or another store.",
            lasting=True,
        )
