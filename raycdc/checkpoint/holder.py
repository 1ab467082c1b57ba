"""Who a driver is, as it says itself in the state: one plain value, with its form on disk."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

from raycdc.checkpoint.door import Door, DoorJson


class HolderJson(TypedDict):
    """`Holder` on disk."""

    host: str
    machine: str
    pid: int
    beat: int
    locked: bool
    ended: bool
    lock: NotRequired[str]
    door: NotRequired[DoorJson]


@dataclass(frozen=True, slots=True)
class Holder:
    """A driver as it says itself: where it runs, how often it has said so, whether it has the state's lock, whether it
    has ended. `machine` is the same for all processes of one kernel since it started. `lock` says which file is locked,
    where that is not in the state's own folder.
    """

    host: str
    machine: str
    pid: int
    beat: int = 0
    locked: bool = False
    ended: bool = False
    lock: str = ""
    door: Door | None = None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def shares(self, lock: str) -> bool:
        """Whether it runs, or ran, where our lock (`lock`, as `Holder.lock`) would meet its own."""
        if self.lock or lock:
            return self.lock == lock
        return self.host == socket.gethostname() or bool(self.machine and self.machine == machine_identity())

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this machine, and in this container."""
        return self.host == socket.gethostname() and self.machine in ("", machine_identity())

    def to_json(self) -> HolderJson:
        document = HolderJson(
            host=self.host,
            machine=self.machine,
            pid=self.pid,
            beat=self.beat,
            locked=self.locked,
            ended=self.ended,
        )
        if self.lock:
            document["lock"] = self.lock
        if self.door is not None:
            document["door"] = self.door.to_json()
        return document

    @classmethod
    def from_json(cls, data: HolderJson) -> Holder:
        said = data["host"], data["machine"], data["pid"], data["beat"], data["locked"], data["ended"]
        door = Door.from_json(data["door"]) if "door" in data else None
        return cls(*said, data.get("lock", ""), door)

    @classmethod
    def myself(cls) -> Holder:
        """The process that asks."""
        return cls(socket.gethostname(), machine_identity(), os.getpid())


@cache
def machine_identity() -> str:
    """An identity of the running kernel; empty where there is none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
