"""Clients that race for each key of a store: who may have made it, and who may have replaced what all had read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Race:
    """Winners of each key, by putting it where nothing was and by replacing that; keys in which another is found."""

    made: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def not_won_once(self, keys: int) -> tuple[list[str], list[str]]:
        """Keys that none or several made, and those that none or several replaced."""
        names = [_name(number) for number in range(keys)]
        return [k for k in names if self.made[k] != 1], [k for k in names if self.replaced[k] != 1]


def race(connect: Callable[[], ObjectStore], keys: int) -> Race:
    """`CLIENTS` clients with a connection each meet at each of `keys` keys."""
    stores, result = [connect() for _ in range(CLIENTS)], Race()
    barrier = threading.Barrier(CLIENTS)

    def run(number: int) -> None:
        try:
            _run(stores[number], f"client {number}".encode(), barrier, result, keys)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(run, range(CLIENTS)))
    return result


def _run(store: ObjectStore, who: bytes, barrier: threading.Barrier, result: Race, keys: int) -> None:
    for key in map(_name, range(keys)):
        barrier.wait()
        try:
            obstore.put(store, key, who, mode="create")
            made = True
        except AlreadyExistsError:
            made = False
        barrier.wait()
        met = obstore.get(store, key)
        version = {name: value for name, value in _version(met.meta).items() if value is not None}
        _count(result.made, result, key, won=made, in_it=bytes(met.bytes()) == who)
        barrier.wait()
        try:
            obstore.put(store, key, who + b" again", mode=version)  # type: ignore[arg-type]
            replaced = True
        except PreconditionError:
            replaced = False
        barrier.wait()
        in_it = bytes(obstore.get(store, key).bytes()) == who + b" again"
        _count(result.replaced, result, key, won=replaced, in_it=in_it)


def _version(meta: obstore.ObjectMeta) -> dict[str, str | None]:
    return {"e_tag": meta["e_tag"], "version": meta["version"]}


def _count(winners: Counter[str], result: Race, key: str, *, won: bool, in_it: bool) -> None:
    if won:
        winners[key] += 1
    if won != in_it:
        result.wrong.append(key)


def _name(number: int) -> str:
    return f"race/{number:03d}"
