"""The effect of changing a key of the configuration while a state exists: one table, which has every key.

| class | a key of it that differs from what the state was made with |
|---|---|
| `FREE` | acts from the next start on |
| `NEW_TABLES` | acts on tables that begin from now on; those that are followed keep what they began with |
| `PLACE` | names where the target is: the target there must hold what was committed, which each start proves |
| `NEW_SNAPSHOT` | is refused until the tables concerned are to be read anew: their rows would not match |
| `JUDGED` | is judged table by table where it acts, against what the state remembers of each (routes, transforms) |
| `NEW_STATE` | is refused: rows already written would not match, or nobody could tell new ones from them |

A key of the sink's section but its type and write is taken, whatever its class, as long as nothing was committed and no
target holds rows of the state (`raycdc.preflight.require_nothing_written`): a first run may have failed because of it.

`class_of` answers for a key; `tests/unit/config/test_configuration_changes.py` walks all models, so that a key that is
not here fails the build. A third party's plug-in declares its keys itself, ``option(…, change="free")``; one that does
not is taken for `NEW_STATE`, and a secret for `FREE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic.fields import FieldInfo

from raycdc.config.fields import Secret


class Change(StrEnum):
    """See the module's docstring."""

    FREE = "free"
    NEW_TABLES = "new tables only"
    PLACE = "place"
    NEW_SNAPSHOT = "new snapshot"
    JUDGED = "judged"
    NEW_STATE = "new state"


_SECTIONS: Mapping[str, Mapping[Change, str]] = {
    "pipeline": {
        Change.NEW_STATE: "name",
        Change.FREE: "state work spool mode epoch_interval epochs_per_hour epoch_bytes_max reader_timeout "
        "progress_timeout watchdog start_in_process schema_change include_schema_changes exclude_schema_changes "
        "time_zone on_bad_record on_table_error on_log_lost on_existing state_key",
        Change.JUDGED: "route_mode",
    },
    "readers": {Change.FREE: "min max fetchers cpus resources labels"},
    "ray": {Change.FREE: "address spool flight"},
    "spark": {Change.FREE: "master conf"},
    "storage": {
        Change.FREE: "endpoint region access_key_id secret_access_key session_token profile path_style account "
        "account_key sas_token service_account anonymous allow_http"
    },
    "control": {Change.FREE: "enabled host port token hosts page"},
    "metrics": {Change.FREE: "address tables_max token"},
    "logging": {Change.FREE: "file format level"},
    "traces": {Change.FREE: "endpoint headers ca allow_http sample_ratio timeout end_wait"},
    "mask": {Change.JUDGED: "columns method key length"},
    "transform": {
        Change.JUDGED: "table projection filter primary_keys partition_by table_options on_delete deleted_column udf"
    },
    "lookup": {
        Change.JUDGED: "type table uri collection on key_type columns prefix missing many on_misfit json",
        Change.FREE: "batch requests cache_ttl cache_rows retries retry_wait",
    },
    "route": {Change.JUDGED: "table replace_symbol to"},
    "notify": {Change.FREE: "type on url secret ca allow_http command timeout retry_for end_wait"},
    "source": {Change.NEW_STATE: "type", Change.FREE: "rows_per_second bytes_per_second"},
    "source:mysql": {
        Change.FREE: "host port user password server_id tables exclude tls.mode tls.ca tls.allow_public_key_retrieval "
        "snapshot.strategy snapshot.chunk_rows snapshot.chunk_bytes snapshot.rows_per_second snapshot.connections "
        "snapshot.visible_within on_cascade heartbeat",
        Change.NEW_TABLES: "startup.mode startup.file startup.pos startup.gtid_set startup.skip_events "
        "startup.skip_rows startup.timestamp_ms snapshot.key",
        Change.NEW_SNAPSHOT: "columns types.invalid_dates types.invalid_text types.tinyint1 types.geometry "
        "snapshot.filter",
    },
    "source:mongodb": {
        Change.FREE: "uri collections exclude schema.sample schema.fields_max on_misfit snapshot.strategy "
        "snapshot.per_collection snapshot.chunk_mb snapshot.samples_per_chunk",
        Change.NEW_TABLES: "startup.mode startup.timestamp_ms",
        Change.NEW_SNAPSHOT: "schema.mode schema.json schema.on_conflict columns metadata snapshot.filter "
        "snapshot.fields snapshot.limit",
        Change.JUDGED: "changelog",
    },
    "source:kafka": {
        Change.FREE: "bootstrap_servers topics topic_pattern group_id stop.mode stop.offsets stop.timestamp_ms "
        "discovery_interval isolation on_out_of_range same_key alignment.max_drift alignment.idle_after properties",
        Change.NEW_TABLES: "start.mode start.offsets start.timestamp_ms start.otherwise",
        Change.NEW_STATE: "order_by",
        Change.JUDGED: "changelog",
    },
    "source:datagen": {
        Change.FREE: "tables events per_second chunk_rows faults.disconnects faults.chunk_rows_per_second "
        "faults.acknowledged",
        Change.NEW_STATE: "rows new_rows seed deletes alter_every",
    },
    #: Of a message format, as ``source.format`` and ``sink.format`` have it.
    "format": {
        Change.NEW_STATE: "type before_image case_sensitive metadata decimal binary time_unit",
        Change.FREE: "columns tables include exclude on_error columns_max ddl include_schema tombstones",
    },
    "sink": {Change.NEW_STATE: "type write", Change.NEW_TABLES: "invalid_names", Change.FREE: "parallelism"},
    "sink:delta": {
        Change.PLACE: "path",
        Change.FREE: "optimize.every optimize.target_file optimize.z_order optimize.vacuum",
    },
    "sink:iceberg": {
        Change.PLACE: "path catalog.type catalog.name catalog.warehouse catalog.uri",
        Change.FREE: "catalog.properties expire_snapshots keep_snapshots optimize.every optimize.target_file",
    },
    "sink:jdbc": {Change.PLACE: "url", Change.FREE: "user password tls.mode tls.ca tls.allow_public_key_retrieval"},
    "sink:jsonl": {Change.PLACE: "path"},
    "sink:parquet": {Change.PLACE: "path"},
    "sink:console": {},
    "sink:kafka": {
        Change.PLACE: "bootstrap_servers topic",
        Change.NEW_TABLES: "partitions replication_factor",
        Change.FREE: "tombstones include_schema ddl_topic task_bytes properties",
    },
    "sink:mongodb": {Change.PLACE: "uri record"},
}

#: The table, by section and key.
CLASSES: Mapping[tuple[str, str], Change] = {
    (section, key): change
    for section, classes in _SECTIONS.items()
    for change, keys in classes.items()
    for key in keys.split()
}


def listed_class(section: str, key: str) -> Change | None:
    """The class of a key of ours; None where the table does not have it. `section` as `source:mysql`, `route`."""
    kind, _, _ = section.partition(":")
    found = CLASSES.get((section, key)) or CLASSES.get((kind, key))
    # A format's own options stand in a table of the source's or sink's.
    return found or (CLASSES.get(("format", key.removeprefix("format."))) if key.startswith("format.") else None)


def class_of(section: str, key: str, field: FieldInfo | None) -> Change:
    """The class of a key, also of a third party's plug-in."""
    if (listed := listed_class(section, key)) is not None:
        return listed
    extra = field.json_schema_extra if field is not None else None
    if isinstance(extra, dict) and "change" in extra:
        return Change(str(extra["change"]))
    return Change.FREE if field is not None and _is_secret(field) else Change.NEW_STATE


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is Secret
