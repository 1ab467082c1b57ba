"""The findings of ``raycdc check``, the same for every source and sink. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raycdc.config.tls import is_loopback
from raycdc.errors import RaycdcError, SourceError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing looked at. `text` is the whole of what people read, a sentence that names its subject; `name` is for
    ``check --json``. `fix` is what to do when it is not `ok`; one not `required` is a warning. `error` is what a run
    would end with; one that `parks` concerns one table, which a run parks, and the others go on.

    A bad answer is a result that is not `ok`; `SourceError` is for a source that gives none, and skips later checks.
    """

    name: str
    text: str
    fix: str = ""
    ok: bool = False
    required: bool = True
    error: type[RaycdcError] = SourceError
    parks: bool = False

    def __str__(self) -> str:
        mark = "ok" if self.ok else ("failed" if self.required else "warning")
        return f"{mark}: {self.text}" + (f" {self.fix}" if self.fix and not self.ok else "")


def readable_on_the_way(address: str, hosts: Iterable[str], *, encrypted: bool, fix: str) -> list[CheckResult]:
    """A warning where a connection goes beyond this machine and nothing encrypts it."""
    if encrypted or all(is_loopback(host) for host in hosts):
        return []
    text = f"The connection to {address} is not encrypted: passwords and rows can be read and changed on the way."
    return [CheckResult("connection", text, fix, required=False)]
