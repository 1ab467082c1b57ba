"""Inspects a Delta table's log independently of delta-rs. It makes new commits durable. It checks that the log still
belongs to the table that was read before, and that no other writer removed or changed rows. Called by `DeltaTarget`
after each refresh, on its thread; reads the commits that are new since the last call.
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

from raycdc.sinks.delta.reading import file_batches, has_vectors, table_at
from raycdc.sinks.lakes.ownership import COMPARED_BYTES_MAX, are_kept
from raycdc.state.files.folder import sync_folder
from raycdc.storage.files import AnyPath, StorePath, content, identity, is_there

#: The numbers of newest commits in which a new `LogWatch` searches for the pipeline's last commit. They are tried in
#: this order; None means all commits.
_DEPTHS: tuple[int | None, ...] = (10, 1_000, None)

#: Operations that replace or remove rows, even if the numbers of rows do not show it.
_REPLACING = frozenset({"DELETE", "TRUNCATE", "OVERWRITE", "CREATE OR REPLACE TABLE", "REPLACE TABLE"})


class CommitInfo(TypedDict, total=False):
    """The keys of a commit's ``commitInfo`` that are used; any writer may omit any of them."""

    operation: str | None
    operationParameters: dict[str, str] | None
    userMetadata: str | None


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """A commit of the log, with the files that it removed and added. Files whose rows it did not change are left out.
    `of_raycdc` is True if a pipeline of raycdc made it. `rows_added` is None if the log lacks the number of rows of a
    file.
    """

    version: int
    operation: str
    of_raycdc: bool
    removed: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    rows_added: int | None = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """The header of a commit in the log."""

    version: int
    operation: str
    of_raycdc: bool
    ours: bool
    #: The versions of app transactions by app; None if one of this pipeline may have been missed.
    transactions: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class AppTransactions:
    """The app transactions in all commits after version `since` of a table, up to the last one read."""

    since: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Losses:
    """A loss of rows that other writers removed since this pipeline's last commit. `restored` is True if one of them
    used RESTORE.
    """

    restored: bool


class LogWatch:
    """Watches the log of one table handle. `app_id` is the id that the pipeline's commits carry."""

    def __init__(self, path: AnyPath, app_id: str) -> None:
        self._path = path
        self._app_id = app_id
        self._seen: int | None = None
        #: The identity of the newest commit's file, as the storage reports it.
        self._file: tuple[object, ...] | None = None
        #: Commits of other writers that may have changed rows. They are checked by `changed`, whose caller knows the
        #: columns.
        self._doubted: list[DeltaCommit] = []
        #: Commits of other writers that removed rows since the pipeline's last commit. They are kept, because a later
        #: RESTORE may bring the rows back.
        self._suspects: list[DeltaCommit] = []
        #: Files of the pipeline's last commit that were missing at the first inspection. The driver that made the
        #: commit may have died before it checked them.
        self.lost: list[str] = []
        #: The transactions of the commits that the last inspection found; None if it could not read all of them.
        self.transactions: AppTransactions | None = None
        #: Commits that were just read and not yet checked.
        self._read: dict[int, list[str]] = {}

    def is_another(self) -> bool:
        """Return True if the log is not the one of the last inspection, because the table was deleted or created again.

        Also True if the file of the newest commit of that time was missing then or is missing now, because the logs
        cannot be compared then.
        """
        return self._seen is not None and (self._file is None or self._identity(self._seen) != self._file)

    def is_newest(self, version: int) -> bool:
        """Return True if a local log certainly has the commit of that version and none after it.

        Always False for an object store, where listing the log costs no more than reading one file. Also False if there
        is a newer checkpoint, because a cleanup may be deleting commits.
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
        """Sync the commits since the last call. The first call syncs the commits since the pipeline's last commit.

        Returns the losses if other writers removed rows since the pipeline's last commit and the table does not have
        all of these rows again; otherwise None.
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
        # Commits of raycdc are trusted: pipelines that share a table follow the same rules, and maintenance only moves
        # rows.
        others = [commit for commit in commits if not commit.of_raycdc and commit.operation != "OPTIMIZE"]
        ours = max((entry.version for entry in known if entry.ours), default=-1)
        suspects = [
            *(commit for commit in self._suspects if commit.version > ours),
            *(commit for commit in others if self._takes_rows(commit)),
        ]
        doubted = [*self._doubted, *(c for c in others if c.removed and c not in suspects)]
        touching = sorted([*suspects, *doubted], key=lambda commit: commit.version)
        if not touching or self._has_all_of(table, touching[0].version - 1):
            self._doubted, self._suspects = [], []
            return None
        self._doubted, self._suspects = doubted, suspects
        return Losses(any(commit.operation == "RESTORE" for commit in suspects)) if suspects else None

    def changed(self, columns: Collection[str]) -> str:
        """Return the operation by which another writer changed values of `columns` since the pipeline's last commit;
        empty if there was none. Called before each commit.
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
        """Return the newest commits, newest first, back to the pipeline's last one."""
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
        # The files of commits are read directly, because the history of delta-rs is slow and blocks all threads of the
        # process (deltalake 1.6). They must be read anyway, because only they name the added data files.
        newest, entries = table.version(), []
        for version in range(newest, -1 if count is None else max(-1, newest - count), -1):
            try:
                lines = self._read[version] = content(self._log_file(version)).decode().split("\n")
            except FileNotFoundError:
                break  # The commit was cleaned up, and so were earlier ones.
            infos = [json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo"')]
            entries.append(self._entry(version, infos[0] if infos else CommitInfo(), lines))
        return entries

    def _entry(self, version: int, info: CommitInfo, lines: Sequence[str]) -> _Entry:
        """Return the header of a commit from its ``commitInfo`` and the transactions in its `lines`."""
        operation = str(info.get("operation") or "").upper()
        mode = str((info.get("operationParameters") or {}).get("mode") or "").upper()
        note = _note(info.get("userMetadata"))
        ours = note.get("pipeline") == self._app_id
        of_raycdc = bool({"pipeline", "raycdc"} & note.keys())
        replaces = operation == "WRITE" and mode == "OVERWRITE"
        found = [json.loads(line)["txn"] for line in lines if line.startswith('{"txn"')]
        transactions = {str(txn["appId"]): int(txn["version"]) for txn in found}
        # A line of another writer that names the app in another format cannot be evaluated.
        unclear = self._app_id not in transactions and any(self._app_id in line for line in lines)
        operation = mode if replaces else operation
        return _Entry(version, operation, of_raycdc, ours, None if unclear else transactions)

    def _synced(self, entry: _Entry) -> DeltaCommit:
        """Return a commit with its files, after making the commit and the files that it added durable. Commits of every
        writer are made durable.
        """
        log = self._log_file(entry.version)
        try:
            # `splitlines` would also split at Unicode line separators within texts.
            lines = self._read.pop(entry.version, None) or content(log).decode().split("\n")
        except FileNotFoundError:
            return DeltaCommit(
                entry.version, entry.operation, entry.of_raycdc
            )  # The commit was cleaned up and is part of a checkpoint.
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
        """Sync a commit and its added files to disk, with the folders that contain them."""
        for path in [log, *files]:
            with suppress(FileNotFoundError), path.open("rb") as file:  # A vacuum may have deleted the file.
                os.fsync(file.fileno())
        # The table's folder changes if files are added to it, and when the log's folder is created.
        folders = {log.parent, table} if files or self._seen is None else {log.parent}
        # The folders of partitions may be new, on every level.
        for folder in {path.parent for path in files} - folders:
            folders.update(above for above in (folder, *folder.parents) if above.is_relative_to(table))
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def _takes_rows(self, commit: DeltaCommit) -> bool:
        """Return True if `commit` removes rows, instead of only changing or moving them."""
        if commit.operation == "RESTORE":
            return True
        if not commit.removed:
            return False
        if commit.operation in _REPLACING:
            return True
        before = self._rows_at(commit.version - 1)
        counts = [before.get(path) for path in commit.removed]
        # Without numbers of rows, `changed` compares the contents.
        if commit.rows_added is None or None in counts:
            return False
        return sum(count or 0 for count in counts) > commit.rows_added

    def _keeps_rows(self, commit: DeltaCommit, columns: Collection[str]) -> bool:
        """Return True if each row that the commit rewrote still exists after it, compared by `columns`. Also True if
        the commit cannot be read any more, or rewrote too much to compare.
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
        """Return True if `table` has all data files of one of its older versions, and so all rows of that version."""
        if version < 0 or has_vectors(table):
            return False
        return self._rows_at(version).keys() <= _files(table).keys()

    def _rows_at(self, version: int) -> Mapping[str, int | None]:
        """Return the data files of an older version with their numbers of rows. If the version cannot be read any more,
        return a single name that no file has.
        """
        try:
            return _files(table_at(self._path, version))
        except (DeltaError, OSError):
            return {"": None}


def _transactions(entries: Sequence[_Entry], since: int, version: int) -> AppTransactions | None:
    """Return the app transactions of `entries`, newest first, if they are all commits after `since` up to `version`."""
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
    """Return a commit's user metadata if it is a JSON object like raycdc's; empty otherwise."""
    try:
        note = json.loads(text or "null")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
