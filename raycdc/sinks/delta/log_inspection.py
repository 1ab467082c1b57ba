"""Looking at a Delta table's log beside delta-rs: is what was committed on the disk, is the log the one that was read
before, and did anybody take rows away, or change them?

Called by `DeltaTarget` whenever it has refreshed, on its thread; reads the commits that are new since the last time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from raycdc.sinks.delta.location import table_at
from raycdc.sinks.delta.row_reading import file_batches, has_vectors
from raycdc.sinks.lakes.ownership import COMPARED_BYTES_MAX, are_kept
from raycdc.state.files.folder import sync_folder
from raycdc.storage.files import AnyPath, StorePath, content, identity, is_there

#: How many commits a new watch looks back for the pipeline's last one, one number after the other; None is all.
_DEPTHS: tuple[int | None, ...] = (10, 1_000, None)

#: Operations that put other rows in the place of those that they remove, or none, whatever their counts say.
_REPLACING = frozenset({"DELETE", "TRUNCATE", "OVERWRITE", "CREATE OR REPLACE TABLE", "REPLACE TABLE"})


class CommitInfo(TypedDict, total=False):
    """The keys of a commit's ``commitInfo`` that are looked at; any writer may leave any of them out."""

    operation: str | None
    operationParameters: dict[str, str] | None
    userMetadata: str | None


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """A commit of the log: its operation, whether a pipeline of raycdc made it, and the files that it took out and put
    in because their rows changed, with the rows of the new ones (None where one does not say).
    """

    version: int
    operation: str
    of_raycdc: bool
    removed: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    rows_added: int | None = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A commit as delta-rs lists it."""

    version: int
    operation: str
    of_raycdc: bool
    ours: bool
    #: The app transactions in it, by app; None where one of this pipeline may be there that was not found.
    transactions: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class AppTransactions:
    """The app transactions in all commits behind version `since` of a table, up to the one that was looked at last."""

    since: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Losses:
    """The rows that others took away since this pipeline's last commit: whether they did so by a RESTORE."""

    restored: bool


class LogWatch:
    """One per handle of a table. `app_id` is the pipeline's, as its commits carry it."""

    def __init__(self, path: AnyPath, app_id: str) -> None:
        self._path = path
        self._app_id = app_id
        self._seen: int | None = None
        #: The file of the newest commit that was seen, by what the file system says of it.
        self._file: tuple[object, ...] | None = None
        #: Commits of others by which rows may have been changed, until somebody who knows the columns looks at them.
        self._doubted: list[DeltaCommit] = []
        #: Files of the pipeline's last commit before the first look that were not there then: whoever made that commit
        #: may have died before it looked for them itself.
        self.lost: list[str] = []
        #: Those of the commits that the last look found new; None where it could not read all of them.
        self.transactions: AppTransactions | None = None
        #: Commits that were just read, and will be looked at.
        self._read: dict[int, list[str]] = {}

    def is_another(self) -> bool:
        """Whether the log is not the one of the last look any more: the table was deleted, or made anew. Also where
        the newest commit of then is part of a checkpoint alone, or was deleted before that look: nobody can tell.
        """
        return self._seen is not None and (self._file is None or self._identity(self._seen) != self._file)

    def is_newest(self, version: int) -> bool:
        """Whether the log, in a folder of this machine, has the commit of that version and surely none behind it. In a
        store a listing costs no more than a file. A cleanup may be half done where there is a checkpoint behind.
        """
        if isinstance(self._path, StorePath) or is_there(self._log_file(version + 1)):
            return False
        try:
            checkpoint = json.loads(content(self._path / "_delta_log" / "_last_checkpoint"))["version"]
        except FileNotFoundError:
            checkpoint = -1
        except (ValueError, KeyError, TypeError):
            return False
        return isinstance(checkpoint, int) and checkpoint <= version and is_there(self._log_file(version))

    def inspect(self, table: DeltaTable) -> Losses | None:
        """Sync the commits since the last look, or, at the first, those since the pipeline's last one, and see whether
        others took rows away in them.
        """
        version = table.version()
        if version == self._seen:
            return None
        known = self._since_ours(table) if self._seen is None else self._history(table, version - self._seen)
        self.transactions = None if self._seen is None else _transactions(known, self._seen, version)
        commits = [self._synced(entry) for entry in reversed(known)]
        self._read.clear()
        if self._seen is None and known and known[-1].ours and (missing := self._absent(commits[0].added)):
            self.lost = sorted(missing & _files(table).keys())
        self._seen, self._file = version, self._identity(version)
        # Pipelines that share a table keep to the same rules, and upkeep only moves rows.
        others = [commit for commit in commits if not commit.of_raycdc and commit.operation != "OPTIMIZE"]
        suspects = [commit for commit in others if self._takes_rows(commit)]
        doubted = [*self._doubted, *(c for c in others if c.removed and c not in suspects)]
        touching = sorted([*suspects, *doubted], key=lambda commit: commit.version)
        if not touching or self._has_all_of(table, touching[0].version - 1):
            self._doubted = []
            return None
        self._doubted = doubted
        return Losses(any(commit.operation == "RESTORE" for commit in suspects)) if suspects else None

    def changed(self, columns: Collection[str]) -> str:
        """The operation by which others changed rows since the pipeline's last commit, in one of `columns`; empty where
        nobody did. It is asked before each commit.
        """
        for commit in self._doubted:
            if not self._keeps_rows(commit, columns):
                return commit.operation
        self._doubted = []
        return ""

    def _absent(self, paths: Collection[str]) -> set[str]:
        return {path for path in paths if not is_there(self._path / path)}

    def _identity(self, version: int) -> tuple[object, ...] | None:
        return identity(self._log_file(version))

    def _log_file(self, version: int) -> AnyPath:
        return self._path / "_delta_log" / f"{version:020d}.json"

    def _since_ours(self, table: DeltaTable) -> Sequence[_Entry]:
        """The newest commits, the newest first, back to the pipeline's last one."""
        entries: list[_Entry] = []
        for count in _DEPTHS:
            entries = self._history(table, count)
            for number, entry in enumerate(entries):
                if entry.ours:
                    return entries[: number + 1]
            if count is None or len(entries) < count:
                break
        return entries

    def _history(self, table: DeltaTable, count: int | None) -> list[_Entry]:
        # delta-rs' history takes most of a look's time, and keeps all threads of the process waiting (deltalake 1.6);
        # files of commits are read for what they added anyway.
        newest, entries = table.version(), []
        for version in range(newest, -1 if count is None else max(-1, newest - count), -1):
            try:
                lines = self._read[version] = content(self._log_file(version)).decode().split("\n")
            except FileNotFoundError:
                break  # Cleaned up, and so are those before it.
            infos = [json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo"')]
            entries.append(self._entry(version, infos[0] if infos else CommitInfo(), lines))
        return entries

    def _entry(self, version: int, info: CommitInfo, lines: Sequence[str]) -> _Entry:
        """A commit as its ``commitInfo``, and the transactions in its `lines`, describe it."""
        operation = str(info.get("operation") or "").upper()
        mode = str((info.get("operationParameters") or {}).get("mode") or "").upper()
        note = _note(info.get("userMetadata"))
        ours = note.get("pipeline") == self._app_id
        of_raycdc = bool({"pipeline", "raycdc"} & note.keys())
        replaces = operation == "WRITE" and mode == "OVERWRITE"
        found = [json.loads(line)["txn"] for line in lines if line.startswith('{"txn"')]
        transactions = {str(txn["appId"]): int(txn["version"]) for txn in found}
        # Another writer may write its lines in another way.
        unclear = self._app_id not in transactions and any(self._app_id in line for line in lines)
        operation = mode if replaces else operation
        return _Entry(version, operation, of_raycdc, ours, None if unclear else transactions)

    def _synced(self, entry: _Entry) -> DeltaCommit:
        """A commit, which is on the disk now with the files that it added, whoever wrote them."""
        log = self._log_file(entry.version)
        try:
            # Texts in it may have line separators of Unicode, at which `splitlines` would cut, too.
            lines = self._read.pop(entry.version, None) or content(log).decode().split("\n")
        except FileNotFoundError:
            return DeltaCommit(
                entry.version, entry.operation, entry.of_raycdc
            )  # Cleaned up: it is part of a checkpoint.
        added = [json.loads(line)["add"] for line in lines if line.startswith('{"add"')]
        removed = [json.loads(line)["remove"] for line in lines if line.startswith('{"remove"')]
        if isinstance(log, Path) and isinstance(self._path, Path):
            self._sync(log, [self._path / unquote(action["path"]) for action in added], self._path)
        counts = [_rows_of(action.get("stats")) for action in added if action.get("dataChange", True)]
        return DeltaCommit(
            entry.version,
            entry.operation,
            entry.of_raycdc,
            frozenset(unquote(action["path"]) for action in removed if action.get("dataChange", True)),
            frozenset(unquote(action["path"]) for action in added if action.get("dataChange", True)),
            None if None in counts else sum(count or 0 for count in counts),
        )

    def _sync(self, log: Path, files: Sequence[Path], table: Path) -> None:
        """What a store answered is kept; a folder of this machine keeps what was synced."""
        for path in [log, *files]:
            with suppress(FileNotFoundError), path.open("rb") as file:  # Vacuumed meanwhile.
                os.fsync(file.fileno())
        # Its names change with files that are added to it, and when the log's folder is made.
        folders = {log.parent, table} if files or self._seen is None else {log.parent}
        # Folders of partitions may be new, and so may the folders they are in.
        for folder in {path.parent for path in files} - folders:
            folders.update(above for above in (folder, *folder.parents) if above.is_relative_to(table))
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def _takes_rows(self, commit: DeltaCommit) -> bool:
        """Whether there are rows before `commit` that are not there after it, neither changed nor moved."""
        if commit.operation == "RESTORE":
            return True
        if not commit.removed:
            return False
        if commit.operation in _REPLACING:
            return True
        before = self._rows_at(commit.version - 1)
        counts = [before.get(path) for path in commit.removed]
        # Whether who does not say how many there are keeps them, their contents will tell.
        if commit.rows_added is None or None in counts:
            return False
        return sum(count or 0 for count in counts) > commit.rows_added

    def _keeps_rows(self, commit: DeltaCommit, columns: Collection[str]) -> bool:
        """Whether each row that a commit rewrote is there after it, as `columns` say it. Who cannot be looked at any
        more, or rewrote too much for that, is believed.
        """
        try:
            old, new = (table_at(self._path, commit.version - back) for back in (1, 0))
            if has_vectors(new) or _bytes(old, commit.removed) + _bytes(new, commit.added) > COMPARED_BYTES_MAX:
                return True
            before, after = (pa.schema(table.schema().to_arrow()) for table in (old, new))
            names = [
                f.name
                for f in before
                if f.name in columns and f.name in after.names and f.type == after.field(f.name).type
            ]
            return are_kept(file_batches(old, commit.removed, names), file_batches(new, commit.added, names), names)
        except (DeltaError, OSError):
            return True

    def _has_all_of(self, table: DeltaTable, version: int) -> bool:
        """Whether `table` has all rows of an older version of it."""
        if version < 0 or has_vectors(table):
            return False
        return self._rows_at(version).keys() <= _files(table).keys()

    def _rows_at(self, version: int) -> Mapping[str, int | None]:
        """The data files of an older version, with their numbers of rows; none where nobody knows any more."""
        try:
            return _files(table_at(self._path, version))
        except (DeltaError, OSError):
            return {"": None}


def _transactions(entries: Sequence[_Entry], since: int, version: int) -> AppTransactions | None:
    """Those of `entries`, the newest first, which are to be all commits behind `since` up to `version`."""
    if version <= since or [entry.version for entry in entries] != [*range(version, since, -1)]:
        return None
    versions: dict[str, int] = {}
    for entry in reversed(entries):
        if entry.transactions is None:
            return None
        versions |= entry.transactions
    return AppTransactions(since, versions)


def _files(table: DeltaTable) -> dict[str, int | None]:
    found = pa.table(table.get_add_actions())
    paths = (unquote(path) for path in found.column("path").to_pylist())
    return dict(zip(paths, found.column("num_records").to_pylist(), strict=True))


def _bytes(table: DeltaTable, paths: Collection[str]) -> int:
    found = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    return sum(file["size_bytes"] for file in found if unquote(file["path"]) in paths)


def _rows_of(statistics: str | None) -> int | None:
    count = json.loads(statistics).get("numRecords") if statistics else None
    return None if count is None else int(count)


def _note(text: str | None) -> Mapping[str, object]:
    """The user's metadata of a commit where it is a note such as ours."""
    try:
        note = json.loads(text or "null")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
