"""Lists the effect of changing each configuration key while a state exists.

| class | effect of a key that differs from the state's |
|---|---|
| `FREE` | takes effect at the next start |
| `NEW_TABLES` | takes effect for new tables; followed tables keep their setting |
| `LOCATION` | changes the target's location; each start verifies that the target at the new location holds the \
committed rows |
| `NEW_SNAPSHOT` | is refused unless a resnapshot of the tables is requested, because rows already written would not \
match |
| `JUDGED` | is checked for each table against the state (routes, transforms) |
| `NEW_STATE` | is refused, because rows already written would not match, or could not be distinguished from new rows |

As long as nothing was committed and no target holds rows of the state, any key of the sink's section except `type` and
`write` may change, whatever its class (`raycdc.driver.fitting.require_nothing_written`). The reason is that a wrong
value may have made the first run fail.

`class_of` returns the class of a key; `tests/unit/config/test_configuration_changes.py` goes through all models, so
that a missing key fails the build. An installed plug-in declares the class of each of its keys itself, as in
``option(…, change="free")``. A key without a declaration is `NEW_STATE`, and a secret is `FREE`.

`declared_models` returns all sections, including those of plug-ins; `keys_of` returns the keys of a model, dotted if a
section has tables of its own.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raycdc.config.fields import AnyLocation, LocalPath, Secret
from raycdc.config.model import COMMON_SECTIONS, REPEATED_SECTIONS
from raycdc.plugins import PluginGroup, list_plugins, load_plugin


class ConfigChangeClass(StrEnum):
    """See the module's docstring."""

    FREE = "free"
    NEW_TABLES = "new tables only"
    LOCATION = "location"
    NEW_SNAPSHOT = "new snapshot"
    JUDGED = "judged"
    NEW_STATE = "new state"


_SECTIONS: Mapping[str, Mapping[ConfigChangeClass, str]] = {
    "pipeline": {
        ConfigChangeClass.NEW_STATE: "name",
        ConfigChangeClass.FREE: "state work_dir spool mode epoch_interval epochs_per_hour epoch_bytes_max "
        "reader_timeout progress_timeout watchdog engines schema_change include_schema_changes exclude_schema_changes "
        "on_bad_record on_table_error on_log_lost on_existing state_key",
        ConfigChangeClass.JUDGED: "route_mode",
    },
    "readers": {ConfigChangeClass.FREE: "min max fetchers cpus resources labels"},
    "ray": {ConfigChangeClass.FREE: "address spool flight"},
    "spark": {ConfigChangeClass.FREE: "master conf from_bytes"},
    "storage": {
        ConfigChangeClass.FREE: "endpoint region access_key_id secret_access_key session_token profile path_style "
        "account account_key sas_token service_account anonymous allow_http"
    },
    "control": {ConfigChangeClass.FREE: "enabled host port token hosts ui"},
    "metrics": {ConfigChangeClass.FREE: "address tables_max token"},
    "logging": {ConfigChangeClass.FREE: "file format level"},
    "traces": {ConfigChangeClass.FREE: "endpoint headers ca allow_http sample_ratio timeout end_wait"},
    "mask": {ConfigChangeClass.JUDGED: "columns method key length"},
    "transform": {
        ConfigChangeClass.JUDGED: "table projection filter primary_keys partition_by table_options on_delete "
        "deleted_column udf"
    },
    "lookup": {
        ConfigChangeClass.JUDGED: "type table uri collection on key_type columns prefix missing many "
        "on_type_mismatch json",
        ConfigChangeClass.FREE: "batch requests cache_ttl cache_rows retries retry_wait",
    },
    "route": {ConfigChangeClass.JUDGED: "table replace_symbol to"},
    "notify": {ConfigChangeClass.FREE: "type on url secret ca allow_http command timeout retry_for end_wait"},
    "source": {ConfigChangeClass.NEW_STATE: "type", ConfigChangeClass.FREE: "rows_per_second bytes_per_second"},
    "source:mysql": {
        ConfigChangeClass.FREE: "host port user password server_id tables exclude tls.mode tls.ca "
        "tls.allow_public_key_retrieval snapshot.strategy snapshot.chunk_rows snapshot.chunk_bytes "
        "snapshot.rows_per_second snapshot.connections "
        "snapshot.visible_within on_cascade heartbeat",
        ConfigChangeClass.NEW_TABLES: "startup.mode startup.file startup.pos startup.gtid_set startup.skip_events "
        "startup.skip_rows startup.timestamp_ms snapshot.key",
        ConfigChangeClass.NEW_SNAPSHOT: "columns types.invalid_dates types.invalid_text types.tinyint1 types.geometry "
        "snapshot.filter",
    },
    "source:mongodb": {
        ConfigChangeClass.FREE: "uri collections exclude schema.sample schema.fields_max on_type_mismatch "
        "snapshot.strategy snapshot.per_collection snapshot.chunk_size snapshot.samples_per_chunk",
        ConfigChangeClass.NEW_TABLES: "startup.mode startup.timestamp_ms",
        ConfigChangeClass.NEW_SNAPSHOT: "schema.mode schema.json schema.on_conflict columns metadata snapshot.filter "
        "snapshot.fields snapshot.limit",
        ConfigChangeClass.JUDGED: "changelog",
    },
    "source:kafka": {
        ConfigChangeClass.FREE: "bootstrap_servers topics topic_pattern group_id stop.mode stop.offsets "
        "stop.timestamp_ms discovery_interval isolation on_out_of_range same_key alignment.max_drift "
        "alignment.idle_after properties",
        ConfigChangeClass.NEW_TABLES: "startup.mode startup.offsets startup.timestamp_ms startup.otherwise",
        ConfigChangeClass.NEW_STATE: "order_by",
        ConfigChangeClass.JUDGED: "changelog",
    },
    "source:datagen": {
        ConfigChangeClass.FREE: "tables events per_second chunk_rows faults.disconnects faults.chunk_rows_per_second "
        "faults.acknowledged",
        ConfigChangeClass.NEW_STATE: "rows new_rows seed deletes alter_every",
    },
    #: The keys of a message format, in ``source.format`` and ``sink.format``.
    "format": {
        ConfigChangeClass.NEW_STATE: "type before_image case_sensitive metadata decimal binary time_unit placeholder "
        "labels missing_after table_in_key",
        ConfigChangeClass.FREE: "columns tables include exclude on_error columns_max ddl include_schema tombstones",
    },
    "sink": {
        ConfigChangeClass.NEW_STATE: "type write",
        ConfigChangeClass.NEW_TABLES: "invalid_names",
        ConfigChangeClass.FREE: "parallelism",
    },
    "sink:delta": {
        ConfigChangeClass.LOCATION: "path",
        ConfigChangeClass.FREE: "optimize.every optimize.target_file optimize.z_order optimize.vacuum",
    },
    "sink:iceberg": {
        ConfigChangeClass.LOCATION: "path catalog.type catalog.name catalog.warehouse catalog.uri",
        ConfigChangeClass.FREE: "catalog.properties expire_snapshots keep_snapshots optimize.every "
        "optimize.target_file",
    },
    "sink:jdbc": {
        ConfigChangeClass.LOCATION: "url",
        ConfigChangeClass.FREE: "user password tls.mode tls.ca tls.allow_public_key_retrieval",
    },
    "sink:jsonl": {ConfigChangeClass.LOCATION: "path"},
    "sink:parquet": {ConfigChangeClass.LOCATION: "path"},
    "sink:console": {},
    "sink:kafka": {
        ConfigChangeClass.LOCATION: "bootstrap_servers topic",
        ConfigChangeClass.NEW_TABLES: "partitions replication_factor",
        ConfigChangeClass.FREE: "tombstones include_schema ddl_topic task_bytes properties",
    },
    "sink:mongodb": {ConfigChangeClass.LOCATION: "uri record"},
}

#: The class of each key, by section and key.
CLASSES: Mapping[tuple[str, str], ConfigChangeClass] = {
    (section, key): change
    for section, classes in _SECTIONS.items()
    for change, keys in classes.items()
    for key in keys.split()
}


def listed_class(section: str, key: str) -> ConfigChangeClass | None:
    """Return the class of a key of raycdc's own sections; None if it is not listed.

    `section` is for example `source:mysql` or `route`.
    """
    kind, _, _ = section.partition(":")
    found = CLASSES.get((section, key)) or CLASSES.get((kind, key))
    # A format's own options are in a table of the source's or sink's section.
    return found or (CLASSES.get(("format", key.removeprefix("format."))) if key.startswith("format.") else None)


def class_of(section: str, key: str, field: FieldInfo | None) -> ConfigChangeClass:
    """Return the class of a key, including keys of other packages' plug-ins."""
    if (listed := listed_class(section, key)) is not None:
        return listed
    extra = field.json_schema_extra if field is not None else None
    if isinstance(extra, dict) and "change" in extra:
        return ConfigChangeClass(str(extra["change"]))
    return ConfigChangeClass.FREE if field is not None and _is_secret(field) else ConfigChangeClass.NEW_STATE


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is Secret


_PLUGIN_SECTIONS = {PluginGroup.SOURCES: "source", PluginGroup.SINKS: "sink", PluginGroup.FORMATS: "format"}


def declared_models() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section with its model, as ``pipeline``, ``route``, ``sink:delta``.

    Plug-ins that cannot be loaded are left out.
    """
    yield from COMMON_SECTIONS.items()
    for name, (_, model) in REPEATED_SECTIONS.items():
        yield name, model
    for listing in list_plugins():
        if listing.error is None:
            config = load_plugin(listing.group, listing.type).config
            yield f"{_PLUGIN_SECTIONS[listing.group]}:{listing.type}", config


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the keys of a section, as users write them, including those of nested tables."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = next((leaf for leaf in leaf_types(field.annotation) if _is_model(leaf)), None)
        if inner is not None:
            yield from keys_of(inner, f"{key}.")
        else:
            yield key, field


def is_local_path(field: FieldInfo) -> bool:
    """Return True if the key names a local folder or file, and refuses the URL of an object store."""
    return _is_marked(field, LocalPath)


def is_location(field: FieldInfo) -> bool:
    """Return True if the key names a folder or file, local or on an object store."""
    return _is_marked(field, LocalPath) or _is_marked(field, AnyLocation)


def may_hold_secret(field: FieldInfo) -> bool:
    """Return True if the value of the key is never shown, because it is a secret or often holds one
    (``repr=False``).
    """
    return not field.repr or Secret in leaf_types(field.annotation)


def _is_marked(field: FieldInfo, mark: type[LocalPath | AnyLocation]) -> bool:
    return any(isinstance(one, mark) for one in (*field.metadata, *_metadata(field.annotation)))


def leaf_types(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a value may have. The members of a union are listed separately."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(leaf for part in get_args(annotation) for leaf in leaf_types(part))
    return leaf_types(get_args(annotation)[0]) if get_origin(annotation) is Annotated else (annotation,)


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)
