"""The findings of ``raycdc check``, the same for every source and sink. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raycdc.config.tls import is_loopback
from raycdc.errors import RaycdcError, SourceError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finding.

    `text` is the whole message, a sentence that names its subject; `name` is for ``check --json``.

    `fix` is the remedy if the result is not `ok`. A result that is not `required` is a warning. `error` is the error
    with which a run would end. If `parks` is True, the finding concerns one table, which a run parks while the other
    tables go on.

    A check reports a problem as a result that is not `ok`. If the source does not answer, the check raises
    `SourceError`, and later checks are skipped.
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
    """Return a warning if a connection leaves this machine and is not encrypted."""
    if encrypted or all(is_loopback(host) for host in hosts):
        return []
    text = f"The connection to {address} is not encrypted: passwords and rows can be read and changed on the way."
    return [CheckResult("connection", text, fix, required=False)]
