"""The findings of ``raycdc check``, the same for every source and sink. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.errors import RaycdcError, SourceError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing looked at. `fix` is what to do when it is not `ok`; one not `required` is a warning. `error` is what a
    run would end with; one that `parks` concerns one table, which a run parks, and the others go on.

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
