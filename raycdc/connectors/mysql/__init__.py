"""The MySQL and MariaDB connector: compiled loops decode the binlog and snapshots from wire bytes into Arrow."""

from __future__ import annotations


def warm_up() -> None:
    """Compile every loop of the connector into the user's cache. Quick if the cache has them."""
    from raycdc.connectors.mysql.warm_up import compile_all

    compile_all()
