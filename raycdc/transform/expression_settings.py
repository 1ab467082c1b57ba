"""Finds the settings of ``spark.conf`` by which Spark may give another result for an expression.

The rows of a target were computed with the settings of their time. With another setting, the before-image of an update
or deletion would be judged otherwise than the row that the target has, and the change would be lost. These settings are
therefore a part of a transform's identity (`raycdc.transform.tables.TransformedTables.identity`). A setting of
``spark.sql`` counts unless it is known to affect no value, so that settings of later versions of Spark count as well.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

_SQL = "spark.sql."
_TIME_ZONE = "spark.sql.session.timeZone"
#: The values that Spark or raycdc uses if ``spark.conf`` does not set them.
_DEFAULTS = {
    _TIME_ZONE: "utc",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "timestamp_ltz",
}
#: The beginnings of settings about speed, memory, files, catalogs, logs and screens. No value of a row depends on them.
_WITHOUT_EFFECT = tuple(
    _SQL + name
    for name in (
        "adaptive.", "artifact.", "autoBroadcastJoinThreshold", "broadcastTimeout", "cache.", "catalog.", "cbo.",
        "codegen.", "debug.", "defaultCatalog", "event.", "execution.arrow.maxBytesPerBatch",
        "execution.arrow.maxRecordsPerBatch", "execution.arrow.pyspark.enabled", "extensions", "files.",
        "globalTempDatabase", "hive.", "iceberg.", "inMemoryColumnarStorage.", "join.", "maxPlanStringLength",
        "maxMetadataStringLength", "metadataCacheTTLSeconds", "metrics.", "orc.", "parquet.", "planChangeLog.",
        "queryExecutionListeners", "redaction.", "shuffle.", "sources.", "statistics.", "streaming.",
        "thriftServer.", "ui.", "warehouse.",
    )
)  # fmt: skip


def expression_settings(conf: Mapping[str, str]) -> str:
    """Return a text that differs for two values of ``spark.conf`` if expressions may give different results with them.

    The text is empty if expressions are computed as by default.
    """
    values = {key: value.strip() for key, value in conf.items() if key.startswith(_SQL)}
    set_ones = {
        key: value
        for key, value in values.items()
        if not key.startswith(_WITHOUT_EFFECT) and value.lower() != _DEFAULTS.get(key)
    }
    zone = set_ones.pop(_TIME_ZONE, "")
    return ";".join([zone, *(f"{key}={set_ones[key].lower()}" for key in sorted(set_ones))])
