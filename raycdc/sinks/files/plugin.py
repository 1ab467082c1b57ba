"""The sections ``parquet``, ``jsonl`` and ``console`` of the configuration. The sinks are imported on use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from raycdc.config import FolderOrUrl, PipelineOptions, SinkConfig, appends_only, option
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.plugins import Plugin
from raycdc.storage.url import is_url

#: Changes that cannot be left out, because each file has the columns of its rows.
_OF_COLUMNS = frozenset({"add_column", "drop_column", "rename_column", "alter_column_type"})


class _AppendingSinkConfig(SinkConfig):
    write: Literal["changelog"] = option("changelog", help="Every change is a row; these sinks cannot update rows.")

    @field_validator("write", mode="before")
    @classmethod
    def _cannot_update(cls, write: Any, info: Any) -> Any:
        return appends_only(str(info.data.get("type", "this sink")), write)


class _FilesSinkConfig(_AppendingSinkConfig):
    """The common options of sinks that write files. Each file has the columns of its rows, so a configuration that
    leaves out changes of columns is refused.
    """

    path: str = option(help="Folder of the files, or its URL on an object store.", example="./lake", min_length=1)

    @property
    def folder(self) -> str:
        return "" if is_url(self.path) else self.path

    @property
    def store(self) -> str:
        return self.path if is_url(self.path) else ""

    def problems(self, pipeline: PipelineOptions, *, local: bool) -> Iterator[str]:
        if pipeline.schema_change is SchemaChangeBehavior.IGNORE:
            yield (
                f'pipeline.schema_change = "ignore": {self.type} files always have the columns of their rows. '
                'Set it to "lenient" or "fail".'
            )
        if columns := sorted(pipeline.schema_changes_left_out & _OF_COLUMNS):
            yield (
                f"pipeline.include_schema_changes, exclude_schema_changes: {', '.join(columns)} cannot be left out of "
                f"{self.type} files, which always have the columns of their rows."
            )


class ParquetSinkConfig(_FilesSinkConfig):
    """``[sink] type = "parquet"``: Parquet files in ``PATH/DB/TABLE``, each visible when its epoch is committed."""

    type: Literal["parquet"] = option("parquet", help="Parquet files.")
    path: FolderOrUrl = option(
        help="Folder of the files, or its URL on an object store.", example="./lake", min_length=1
    )


class JsonlSinkConfig(_FilesSinkConfig):
    """``[sink] type = "jsonl"``: ``.jsonl`` files in ``PATH/DB/TABLE``, one row per line."""

    type: Literal["jsonl"] = option("jsonl", help="JSON Lines files.")
    path: FolderOrUrl = option(
        help="Folder of the files, or its URL on an object store.", example="./changes", min_length=1
    )


class ConsoleSinkConfig(_AppendingSinkConfig):
    """``[sink] type = "console"``: rows on standard output, for testing; it remembers nothing."""

    prints_rows: ClassVar[bool] = True

    type: Literal["console"] = option("console", help="Standard output.")


PARQUET = Plugin("parquet", "Parquet files, changelog", ParquetSinkConfig, "raycdc.sinks.files.sink:ParquetSink")
JSONL = Plugin("jsonl", "JSON Lines files, changelog", JsonlSinkConfig, "raycdc.sinks.files.sink:JsonlSink")
CONSOLE = Plugin("console", "rows on standard output", ConsoleSinkConfig, "raycdc.sinks.files.console:ConsoleSink")
