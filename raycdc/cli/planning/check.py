"""``raycdc check``: checks the configuration, and the state and permissions of the source. Changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raycdc.cli.planning.check_targets import as_parked, check_targets
from raycdc.cli.planning.schemas import (
    CHUNKS_FIX,
    table_findings,
    transform_problems,
    transformed_tables,
    unfit_results,
)
from raycdc.config import PipelineConfig, RouteOptions, load_config
from raycdc.config.checks import CheckResult
from raycdc.core.terminal_text import printable_text
from raycdc.delivery.lookup.lookups import check_lookup
from raycdc.delivery.targets.parked_targets import parks_of
from raycdc.driver.fitting import effects_of
from raycdc.driver.resolve import BEGUN, FITTING, SELECTED, ResolvedRun
from raycdc.driver.startup_checks import DECISIVE, START_CHECKS, Start, require_row_store
from raycdc.errors import (
    ConfigError,
    DataError,
    ExitCode,
    ParkReason,
    RaycdcError,
    SinkError,
    SourceError,
)
from raycdc.model import TableId, TableSchema
from raycdc.model.rules.selector import bare_dot
from raycdc.source.connector import SourceTable
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.parking import with_requests
from raycdc.source.tables.table_requests import requests_of
from raycdc.state.configured import FullBy

#: The beginning of messages about a key that prevents a run.
REFUSED = "A run refuses this."
_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}
#: The indentation of further lines about a finding.
_INDENT = " " * 9


def check_config(path: Path, *, as_json: bool, local: bool = False) -> int:
    """Print one finding per line; return the exit code of the first error that a run would meet.

    For tables that would be parked, that is the code of the error that parks them. `local` is a run without Ray and
    Spark, as with ``pipeline.engines = "never"``.
    """
    config = load_config(path)
    local = local or config.is_local
    for warning in config.warnings:
        print(printable_text(f"Warning: {warning}"), file=sys.stderr)
    results: list[CheckResult] = []
    try:
        for group in _findings(Start(config, local)):
            for result in group:
                _print(result, as_json=as_json)
            results += group
    except RaycdcError as error:
        # The exit code is that of the earliest error that a run would meet, and nothing is reported twice.
        if not _failed(results):
            raise
        if str(error) not in {result.text for result in results}:
            results.append(CheckResult("source", str(error), error=type(error)))
            _print(results[-1], as_json=as_json)
    failed = _failed(results)
    if not as_json:
        print(f"\n{len(failed)} of {len(results)} checks failed." if failed else "\nEverything needed is there.")
    return int(failed[0].error.exit_code if failed else ExitCode.DONE)


def rate_limit_lines(config: PipelineConfig) -> list[str]:
    """Return the source's rate limit for people; empty without a limit."""
    rate_limit = config.source.rate_limit
    if not rate_limit:
        return []
    return [f"All readers together read at most {rate_limit} of the source, chunks and changes."]


def _failed(results: Iterable[CheckResult]) -> list[CheckResult]:
    return [result for result in results if result.required and not result.ok]


def _findings(start: Start) -> Iterator[list[CheckResult]]:
    """Return all findings, in the order in which a run would meet them.

    Raises `SourceError` if the source is unreachable.
    """
    config = start.config
    failed: list[CheckResult] = []
    for check in START_CHECKS:
        answers = check.results(start)
        yield answers
        failed += _failed(answers)
        if check.name in DECISIVE and _failed(answers):
            return  # Without that, the other checks make no sense.
    run = ResolvedRun(start, start.store)
    fitting = FITTING.results(run)
    yield fitting
    yield [CheckResult("rate_limit", text, ok=True) for text in rate_limit_lines(config)]
    try:
        selected = list(SELECTED.ask(run))
    except SourceError:
        selected = []  # A source that does not answer is reported by the next check.
    findings = run.source.check(run.last, names_reported=bool(selected))
    results, tables = list(findings.results), findings.tables
    fixes = {result.name: result.fix for result in results}
    selected = [replace(one, fix=fixes.get(one.name, "")) for one in selected]
    yield [*selected, *(result for result in results if result.name not in {one.name for one in selected})]
    yield check_patterns(config)
    asked = [*fitting, *selected, *(result for result in results if not result.parks)]
    if not _failed(asked):
        results = check_start(run)
        yield results
        asked += results
    failed += _failed(asked)
    all_known = run.source.knows_tables
    described = _described(run, tables)
    refused = check_tables(run, {table: one.schema for table, one in described.items()})
    yield refused
    yield [CheckResult("chunks", one.note, CHUNKS_FIX, required=False) for one in described.values() if one.note]
    yield check_changelog(run) if tables else []
    yield check_routes(config.routes, tables, all_known=all_known)
    yield check_transforms(run, tables, described, all_known=all_known)
    for number, options in enumerate(config.lookups):
        yield check_lookup(options, number)
    results = check_sink(run, tables)
    yield results
    # A source that contradicts the state, or does not answer, has been reported.
    if not failed and not _failed(result for result in results if not result.parks):
        held = {result.name.removeprefix("table ") for result in refused if result.parks}
        yield check_targets(run, [table for table in tables if str(table) not in held], again=run.lost is not None)


def check_patterns(config: PipelineConfig) -> list[CheckResult]:
    """Return warnings about regular expressions whose dot between database and table matches any character."""
    return [
        CheckResult("tables", f"The first dot of {text} stands for any character.", f"Write {meant}", required=False)
        for text in config.source.table_patterns
        if (meant := bare_dot(text))
    ]


def _described(run: ResolvedRun, tables: Collection[TableId]) -> dict[TableId, SourceTable]:
    """Return the tables with their columns; empty if messages cannot be decoded.

    The findings about the topic report this problem.
    """
    if not tables:
        return {}
    try:
        return run.tables
    except DataError:
        return {}


def check_sink(run: ResolvedRun, tables: Collection[TableId]) -> list[CheckResult]:
    """Return the findings of the sink's server or catalog; none for folders.

    A finding with `parks` set concerns the name of a target.
    """
    targets = list(dict.fromkeys(target for table in tables for target in run.rules.router.targets(table)))
    results = run.start.sink.check(targets, pipeline=run.config.pipeline.name)
    parks = parks_of(run.config.pipeline)(ParkReason.NAME)
    results = [replace(result, error=SinkError) for result in results]
    return [as_parked(result, parks=parks) if result.parks else result for result in results]


def check_start(run: ResolvedRun) -> list[CheckResult]:
    """Return the source's findings about a start from the existing state, with the texts of a run."""
    results = BEGUN.results(run)
    if run.last is not None and not _failed(results):
        try:
            run.require_as_begun()
        except RaycdcError as error:
            return [CheckResult("start", str(error), error=type(error))]
    return results


def check_tables(run: ResolvedRun, schemas: Mapping[TableId, TableSchema]) -> list[CheckResult]:
    """Check that targets can hold the tables, and under which names."""
    results = table_findings(run, schemas)
    if schemas and not any(result.parks for result in results):
        results.append(CheckResult("tables", "The targets can hold every table.", ok=True))
    return results


def state_effects(run: ResolvedRun) -> list[str]:
    """Return the effect of a changed configuration on the state at the next run, or the reason why a run would be
    refused.
    """
    try:
        return [*effects_of(run.changed), *_not_read_twice(run)]
    except ConfigError as refused:
        return [f"{REFUSED} {problem}" for problem in refused.problems]


def _not_read_twice(run: ResolvedRun) -> list[str]:
    """Return the tables that are to continue from their last position although the source's log cannot be
    read twice.
    """
    stream = stream_of(run.last)
    if stream is None or run.store is None or not (why := run.config.source.why_read_once):
        return []
    resuming = with_requests(stream, requests_of(run.store)).catching_up
    return [
        f"{table} does not go on from where it was left: a run parks it, because {why} Then: raycdc tables resume "
        f"CONFIG {table}"
        for table in sorted(resuming, key=str)
    ]


def check_changelog(run: ResolvedRun) -> list[CheckResult]:
    """Return the cost of a configured full changelog. Raises `SourceError` if the source does not answer."""
    if not run.config.source.full_changelog:
        return []
    try:
        if run.full_by is FullBy.SOURCE:
            text = "It is full by the images of all collections; no rows are kept for it."
            return [CheckResult("changelog", text, ok=True)]
        require_row_store(run.start)
    except ConfigError as error:
        return [CheckResult("changelog", str(error), error=ConfigError)]
    text = "It is made full by the last row of each key, which is kept under pipeline.state: one row per key and table."
    return [CheckResult("changelog", text, ok=True)]


def check_routes(
    routes: Sequence[RouteOptions], found: Collection[TableId], *, all_known: bool = True
) -> list[CheckResult]:
    """Return a finding per route that no table takes.

    It is an error if the route names one table and the tables are `all_known`, else a warning.
    """
    results: list[CheckResult] = []
    for index, options in enumerate(routes):
        route = options.route()
        pattern = route.pattern()
        if any(pattern.match(table) for table in found):
            continue
        if route.plain is not None:
            fix = "Correct the name, or leave the route out."
            text = f"route[{index}].table: there is no table {route.plain}{'' if all_known else ' yet'}."
        else:
            fix = "Tables that match it and are created while the pipeline runs take it."
            text = f"route[{index}].table: the pattern {route.table} matches no captured table yet."
        required = all_known and route.plain is not None
        results.append(CheckResult("routes", text, fix, required=required, error=ConfigError))
    return results


def check_transforms(
    run: ResolvedRun, found: Collection[TableId], described: Mapping[TableId, SourceTable], *, all_known: bool
) -> list[CheckResult]:
    """Return a finding per transform that no table takes, as with routes, and per table whose columns do not fit its
    transform, or with a transform's result that its targets cannot have.
    """
    transforms = run.rules.transforms
    results: list[CheckResult] = []
    for index, transform in enumerate(transforms.all):
        if not any(transforms.index(table) == index for table in found):
            named = transform.plain_table is not None
            text = f"transform[{index}].table: no captured table takes {transform.table}{'' if all_known else ' yet'}."
            fix = "Correct the name, or put the transform before others that match the table."
            results.append(CheckResult("transforms", text, fix, required=all_known and named, error=ConfigError))
    for lookup in transforms.lookups:
        if not any(lookup.pattern().match(table) for table in found):
            text = f"{lookup.key_path}.table: no captured table takes {lookup.table}{'' if all_known else ' yet'}."
            required = all_known and lookup.plain_table is not None
            results.append(CheckResult("lookups", text, "Correct the name.", required=required, error=ConfigError))
    changes = bool(run.config.masks) or any(transforms.of(table) for table in found)
    if not all_known and not changes:
        return results
    if not all_known:
        text = "The effect of transforms and masks on topics' tables is known when their first rows are written."
        return [*results, CheckResult("transforms", text, required=False)]
    schemas = {table: one.schema for table, one in described.items()}
    try:
        with transformed_tables(run) as tables:
            fitting = dict(schemas)
            for table, problem in transform_problems(tables, schemas) if changes else ():
                if problem:
                    del fitting[table]
                text = problem or f"{transforms.key_path(table) if transforms.of(table) else 'mask'} fits {table}."
                results.append(CheckResult("transforms", text, ok=not problem, error=ConfigError))
            results += unfit_results(run, tables, fitting)
    except ConfigError as error:
        results.append(CheckResult("transforms", str(error), error=ConfigError))
    return results


def _print(result: CheckResult, *, as_json: bool) -> None:
    status = "ok" if result.ok else "failed" if result.required else "warning"
    if as_json:
        fix = "" if result.ok else result.fix
        print(json.dumps({"check": result.name, "status": status, "text": result.text, "fix": fix}))
        return
    print(f"{_MARKS[status]}  {printable_text(result.text, indent=_INDENT)}")
    if result.fix and not result.ok:
        print(f"{_INDENT}{printable_text(result.fix, indent=_INDENT)}")
