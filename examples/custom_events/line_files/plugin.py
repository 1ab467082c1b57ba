"""The object that the entry point names. It imports quickly: the source itself is imported when a pipeline uses it."""

from __future__ import annotations

from typing import Literal

from raycdc.config import Folder, SourceConfig, option
from raycdc.plugins import Plugin


class LineFilesConfig(SourceConfig):
    """The configuration section ``[source] type = "line-files"``."""

    type: Literal["line-files"] = option("line-files", help="Lines of files that grow.")
    path: Folder = option(help="The folder of the files, which are called *.log.", example="./logs", min_length=1)


PLUGIN = Plugin("line-files", "Lines of files that grow", LineFilesConfig, "line_files.source:LineFilesSource")
