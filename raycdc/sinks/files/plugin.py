"""``parquet``, ``jsonl`` and ``console``: their sections of the configuration. The sinks are imported on use."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from raycdc.config import SinkConfig, appends_only, option
from raycdc.plugins import Plugin


class _AppendingSinkConfig(SinkConfig):
    write: Literal["changelog"] = option("changelog", help="Every change is a row; these sinks cannot update rows.")

    @field_validator("write", mode="before")
    @classmethod
    def _cannot_update(cls, write: Any, info: Any) -> Any:
        return appends_only(str(info.data.get("type", "this sink")), write)


class ParquetSinkConfig(_AppendingSinkConfig):
    """``[sink] type = "parquet"``: Parquet files in ``PATH/DB/TABLE``, each visible when its epoch is committed."""

    type: Literal["parquet"] = option("parquet", help="Parquet files.")
    path: str = option(help="Folder or URI of the files.", example="./lake", min_length=1)


class JsonlSinkConfig(_AppendingSinkConfig):
    """``[sink] type = "jsonl"``: ``.jsonl`` files in ``PATH/DB/TABLE``, one row per line."""

    type: Literal["jsonl"] = option("jsonl", help="JSON Lines files.")
    path: str = option(help="Folder or URI of the files.", example="./changes", min_length=1)


class ConsoleSinkConfig(_AppendingSinkConfig):
    """``[sink] type = "console"``: rows on standard output, for looking; it remembers nothing."""

    type: Literal["console"] = option("console", help="Standard output.")


PARQUET = Plugin("parquet", "Parquet files, changelog", ParquetSinkConfig, "raycdc.sinks.files.parquet:ParquetSink")
JSONL = Plugin("jsonl", "JSON Lines files, changelog", JsonlSinkConfig, "raycdc.sinks.files.jsonl:JsonlSink")
CONSOLE = Plugin("console", "rows on standard output", ConsoleSinkConfig, "raycdc.sinks.files.console:ConsoleSink")
