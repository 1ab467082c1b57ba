"""The object that the entry point names. It imports quickly: the source itself is imported when a pipeline uses it."""

from __future__ import annotations

from typing import Literal

from raycdc.config import Folder, SourceConfig, option
from raycdc.plugins import Plugin


class CsvFilesConfig(SourceConfig):
    """The configuration section ``[source] type = "csv-files"``."""

    type: Literal["csv-files"] = option("csv-files", help="CSV files that grow.")
    path: Folder = option(help="The folder of the files.", example="./in", min_length=1)


PLUGIN = Plugin("csv-files", "CSV files that grow", CsvFilesConfig, "csv_files.source:CsvFilesSource")
