"""``raycdc plugins``: lists the installed plug-ins, and shows which of them fail to load."""

from __future__ import annotations

import json
import sys

from raycdc.errors import ExitCode
from raycdc.plugins import list_plugins


def print_plugins(*, as_json: bool) -> int:
    """Print one line per plug-in.

    Returns the exit code of a config error if one is broken, after all lines are printed.
    """
    listings = list_plugins()
    for listing in listings:
        kind = listing.group.value.removeprefix("raycdc.").removesuffix("s")
        if as_json:
            fields = {"kind": kind, "type": listing.type, "package": listing.package, "summary": listing.summary}
            print(json.dumps({**fields, "error": listing.error}))
        else:
            print(f"{kind:7} {listing.type:12} {listing.package:12} {listing.error or listing.summary}")
    if not listings:
        print("No plug-ins are installed: raycdc itself is not installed as a package.", file=sys.stderr)
    return int(ExitCode.CONFIG if any(listing.error for listing in listings) else ExitCode.DONE)
