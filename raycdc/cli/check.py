"""``raycdc check``: is the configuration right, and the source fit and permitted? Changes nothing."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from raycdc.config import load_config
from raycdc.connectors.mysql.checks import CheckResult, check_source
from raycdc.errors import ConfigError, ExitCode

_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


def check_config(path: Path, *, as_json: bool) -> int:
    """Print one finding per line; the exit code is the source's (3) when a required one failed."""
    config = load_config(path)
    for warning in config.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    if config.source.type != "mysql":
        raise ConfigError(f'source.type: "{config.source.type}" has no check; start the pipeline to see')
    results = check_mysql(config.source)
    for result in results:
        _print(result, as_json=as_json)
    failed = sum(1 for result in results if result.required and not result.ok)
    if not as_json:
        print(f"\n{failed} of {len(results)} checks failed." if failed else "\nEverything needed is there.")
    return int(ExitCode.SOURCE if failed else ExitCode.DONE)


def check_mysql(source: Any) -> list[CheckResult]:
    """All findings for a `MySqlSourceConfig`. Raises `SourceError` when the server cannot be asked at all."""
    from raycdc.connectors.mysql.catalog import discover_tables
    from raycdc.connectors.mysql.connection import connect
    from raycdc.connectors.mysql.server import probe

    selector = source.selector()
    with closing(connect(source.settings())) as connection:
        info = probe(connection)
        found = discover_tables(connection, selector, named=selector.plain_names)
        server_ids = range(source.server_id.first, source.server_id.last + 1)
        return [
            CheckResult(
                "connection", f"Connected to {info.flavor_name} {info.version_text} at {info.address}.", ok=True
            ),
            *_patterns(selector.patterns, [str(table) for table in found]),
            # Plain names are checked whether they were found or not: a missing one is an error, not a surprise later.
            *check_source(
                connection,
                info,
                {*found, *selector.plain_names},
                server_ids=server_ids,
                accept_cascades=source.on_cascade == "accept",
            ),
        ]


def _patterns(patterns: tuple[str, ...], found: list[str]) -> list[CheckResult]:
    import re

    return [
        CheckResult(
            "tables",
            f"The pattern {pattern} of source.tables matches no table yet.",
            "Tables that match it and are created while the pipeline runs are followed.",
            required=False,
        )
        for pattern in patterns
        if not any(re.fullmatch(pattern, name) for name in found)
    ]


def _print(result: CheckResult, *, as_json: bool) -> None:
    status = "ok" if result.ok else "failed" if result.required else "warning"
    if as_json:
        fix = "" if result.ok else result.fix
        print(json.dumps({"check": result.name, "status": status, "text": result.text, "fix": fix}))
        return
    print(f"{_MARKS[status]}  {result.text}")
    if result.fix and not result.ok:
        print(f"         {result.fix}")
