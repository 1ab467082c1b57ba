"""A source in which each file ``*.log`` of a folder is a split, and each line is a row of ``files.lines``."""

from __future__ import annotations

from line_files.enumerator import SCHEMA, TABLE, LineFilesEnumerator, bytes_read, sizes_of
from line_files.plugin import LineFilesConfig
from line_files.reader import LineFilesReader, LinesEmitter, LineSplitReader
from raycdc.config.checks import CheckResult
from raycdc.errors import LogLostError
from raycdc.model import TableId
from raycdc.source.connector import Source, SourceFindings, SourceTable
from raycdc.source.protocol.api import EnumeratorStart, SplitEnumeratorContext
from raycdc.source.reader.fetcher_manager import Sequential
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.state.manifests.manifest import Manifest


class LineFilesSource(Source[LineFilesConfig]):
    """The source; see the module's docstring.

    The state of a split is ``{"position": BYTES}``: the number of bytes of its file that were read.
    """

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        text = f"{len(sizes_of(self.config.path))} files are there."
        return SourceFindings([CheckResult("folder", text, ok=True)], [TABLE])

    def preflight(self, last: Manifest | None) -> None:
        sizes = sizes_of(self.config.path)
        for name, state in ({} if last is None else last.to_splits).items():
            if sizes.get(name, 0) < bytes_read(state):
                raise LogLostError(f"{name} is shorter than what was read of it: it was cut off or deleted.")

    def tables(self) -> dict[TableId, SourceTable]:
        return {TABLE: SourceTable(SCHEMA)}

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> LineFilesEnumerator:
        return LineFilesEnumerator(context, self.config.path, start)

    def create_reader(self, context: ReaderContext) -> LineFilesReader:
        path = self.config.path
        fetchers = context.threads.start(lambda: LineSplitReader(path), name="log_read", threading=Sequential())
        return LineFilesReader(context, fetchers, LinesEmitter())
