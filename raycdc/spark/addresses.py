"""The address at which Spark's executors reach this machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

_STANDALONE = re.compile(r"spark://\[?([^,\]]+?)\]?:(\d+)")


def own_address(master: str, conf: Mapping[str, str]) -> str:
    """Return ``spark.driver.host`` if it is set, otherwise the address of the interface towards a standalone master.

    Empty if neither is known.
    """
    if given := conf.get("spark.driver.host", ""):
        return given
    found = _STANDALONE.match(master)
    if found is None:
        return ""
    try:
        family, kind, _, _, location = socket.getaddrinfo(found[1], int(found[2]), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Connecting a UDP socket sends nothing, but makes the system choose the interface.
            probe.connect(location)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
