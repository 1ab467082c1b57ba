"""A script of MariaDB's regression suite, rewritten so that what it makes stays, or the reason to leave it out.

*Rewriting.* `mariadb-test` plays the text, so only what would take tables away is changed. A ``DROP TABLE`` is left
out, and from there on the script's name for that table means a new one: ``t1`` becomes ``t1_g2``. Included files are
put in, so that they are rewritten, too. ``test``, the database of all scripts, becomes the script's own. Other programs
are not run. Everything else stays: sessions with their switches, connections, errors that are expected.

*What is no statement of SQL to this page* is left as it is: a fault of the rewriting costs some tables, never more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Why a script is left out, by what its text (with all that it includes) has. In this order; the first one counts.
LEFT_OUT: Mapping[str, re.Pattern[str]] = {
    reason: re.compile("|".join(patterns), re.MULTILINE)
    for reason, patterns in {
        "it needs more than one server": (
            r"master-slave\.inc",
            r"^[ \t]*(--)?\s*(sync_slave|sync_with_master|save_master_pos)",
            r"change\s+master\s",
            r"start\s+slave",
            r"include/galera|have_wsrep|have_federated|federated\.inc|rpl_init\.inc",
        ),
        "it stops or restarts the server": (
            r"restart_mysqld|shutdown_server|kill_mysqld|start_mysqld|shutdown_mysqld|include/crash|expect_crash",
            r"^[ \t]*shutdown\b",
            r"\$mysqld_(cmd|last_cmd|bootstrap_cmd)",
            r"\.expect\b",
        ),
        "it needs a server built for debugging": (r"have_debug|debug_dbug|debug_sync",),
        "it changes files of the server": (
            r"^[ \t]*-*\s*(chmod|copy_file|move_file|remove_files_wildcard|force-rmdir|copy_files_wildcard)\b",
        ),
        "it resets or purges the log": (
            r"reset\s+master",
            r"purge\s+(binary|master)\s+logs",
            r"binlog_checkpoint|reset_master",
        ),
        "it keeps statements out of the log": (
            r"sql_log_bin|skip_log_bin",
            # Rows that cannot be saved are gone.
            r"repair\s+(local|no_write_to_binlog)\s[^;]*use_frm",
        ),
        "it logs less than whole rows": (r"binlog_row_image",),
        "it changes the server's own tables or accounts": (
            r"(insert\s+(ignore\s+)?into|replace\s+into|update|delete\s+from)\s+`?mysql`?\.",
            r"(truncate|drop\s+table(\s+if\s+exists)?|alter\s+table|create\s+table)\s+`?mysql`?\.",
            r"use\s+mysql\b|set\s+password",
            r"(alter|drop|rename)\s+user\s+[`']?root",
            r"install\s+(plugin|soname)|set\s+default\s+role",
            r"^[ \t]*kill\s+user\b",
        ),
        "it makes the server read-only, or holds all commits up": (
            r"global\s+(super_)?read_only|@@global\.read_only|backup\s+stage|backup\s+lock",
        ),
        "it needs a big machine or hours": (r"big_test\.inc|long_test\.inc|have_large|include/not_valgrind_build",),
    }.items()
}
_SOURCE = re.compile(r"^\s*(?:--)?\s*source\s+([^\s;$]+)\s*;?\s*$", re.IGNORECASE)
_DROP = re.compile(
    r"^\s*(?:eval\s+)?drop\s+tables?\s+(?:if\s+exists\s+)?(.*?)(?:\s+(?:restrict|cascade))?\s*$", re.I | re.S
)
_TEMPORARY = re.compile(
    r"^\s*(?:eval\s+)?create\s+(?:or\s+replace\s+)?temporary\s+table\s+(?:if\s+not\s+exists\s+)?([\w$`.]+)", re.I
)
_TRIGGER = re.compile(r"^\s*(?:eval\s+)?create\s+(?:definer\s*=\s*\S+\s+)?trigger\s+([\w$`]+)\s", re.I)
_DROPS_HOME = re.compile(r"^\s*drop\s+(?:database|schema)\s+(?:if\s+exists\s+)?`?test`?\s*$", re.I)
_NAME = re.compile(r"^(?:`?test`?\s*\.\s*)?`?([A-Za-z_][\w]*)`?$")
_HEREDOC = re.compile(r"^\s*(?:--)?\s*(?:write_file|append_file|perl)\b(.*)$", re.I)
_PROGRAM = re.compile(r"(?:--)?\s*(?:exec|system|exec_in_background)\b", re.I)
_DIRECTIVE = re.compile(
    r"^\s*(?:--)?\s*(connect|connection|disconnect|let|source|sleep|real_sleep|inc|dec|echo|if|while|end|"
    r"delimiter|disable_\w+|enable_\w+|error|replace_\w+|sorted_result|horizontal_results|vertical_results|die|exit|skip|"
    r"require|reap|send_eval|send|character_set|write_file|append_file|remove_file|mkdir|rmdir|list_files\w*|cat_file|"
    r"diff_files|file_exists|send_quit|change_user|dirty_close|ping|query_get_value|lowercase_result|reset_connection|"
    r"wait_for_slave_to_stop|shutdown_server|result_format|optimizer_trace|ps_prepare|ps_bind|ps_execute|ps_close)\b",
    re.I,
)
_SENT = re.compile(r"^\s*(?:--)?\s*(?:send|send_eval|query|query_vertical|query_horizontal|eval)\b", re.I)
#: Depth of included files.
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Script:
    """``suite/name``, the text to play, and the database it plays in; or why it is left out."""

    name: str
    database: str
    text: str
    left_out: str = ""
    #: It has values that a reader cannot tell without the table's schema: compressed columns, MariaDB's old TIME.
    not_read_alone: bool = False


def load(path: Path, name: str, database: str, *, home: Path) -> Script:
    """Read a script and rewrite it. `home`: the folder in which the player runs."""
    whole = _included(_read(path), path.parent, home, 0)
    lower = whole.lower()
    uncommented = "\n".join(line for line in lower.split("\n") if not line.lstrip().startswith(("#", "-- ")))
    for reason, pattern in LEFT_OUT.items():
        if pattern.search(uncommented):
            return Script(name, database, "", reason)
    text = whole.replace("../../std_data/", f"{home}/std_data/")
    alone = not re.search(r"\bcompressed\b|mysql56_temporal_format", lower)
    return Script(name, database, Rewriter(database).rewrite(text), not_read_alone=not alone)


def _read(path: Path) -> str:
    # Some are in no encoding at all: byte for byte.
    return path.read_bytes().decode("latin-1")


def _included(text: str, folder: Path, home: Path, depth: int) -> str:
    lines = []
    for line in text.split("\n"):
        found = _SOURCE.match(line) if "source" in line.lower() else None
        inner = None
        # What only asks what the server can do stays in its own file: it would be gone through three thousand times.
        if found and depth < _DEPTH and not re.match(r"include/(have|not)_", found[1]):
            inner = next(
                (path for path in (home / found[1], folder / found[1], folder.parent / found[1]) if path.is_file()),
                None,
            )
        if inner is None:
            lines.append(line)
        else:
            lines.append(_included(_read(inner), inner.parent, home, depth + 1))
    return "\n".join(lines)


@dataclass(slots=True)
class Rewriter:
    """Rewrites one script, piece by piece; it knows which name stands for which table by now."""

    database: str
    #: How often a table of that name was dropped after it had been named.
    generations: dict[str, int] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    #: Tables that are hidden by a temporary one.
    temporary: set[str] = field(default_factory=set)
    _delimiter: str = ";"
    #: The last directive says that the next statement fails.
    _fails: bool = False

    def rewrite(self, text: str) -> str:
        """The whole script."""
        return "".join(self._piece(piece) for piece in self._pieces(text))

    def _piece(self, piece: str) -> str:
        stripped = piece.strip()
        if not stripped or stripped.startswith("#"):
            return piece
        if stripped.startswith("--") or _DIRECTIVE.match(stripped):
            word = stripped.lstrip("-").strip().lower()
            if word.startswith("error"):
                self._fails = not re.match(r"error\s+0\b", word)
            return self._named(piece) if _SENT.match(stripped) or _DIRECTIVE.match(stripped) else piece
        fails, self._fails = self._fails, False
        body = stripped.removesuffix(self._delimiter).strip()
        dropped = _DROP.match(body)
        if dropped and not fails and "$" not in body:
            return self._drop(piece, dropped[1])
        if _DROPS_HOME.match(body):
            return piece.replace(body, "DO 0")
        made = _TEMPORARY.match(body)
        if made and (name := _NAME.match(made[1])):
            self.temporary.add(name[1])
        trigger = _TRIGGER.match(body)
        self.mentioned.update(re.findall(r"[A-Za-z_]\w*", body))
        told = self._named(piece)
        if trigger and not fails:
            # The table that had it is still there.
            return f"\nDROP TRIGGER IF EXISTS {self._named(trigger[1])}{self._delimiter}{told}"
        return told

    def _drop(self, piece: str, listed: str) -> str:
        """A DROP TABLE: names that cannot be told stay in it, the others mean another table from here on."""
        names = [_NAME.match(name.strip()) for name in listed.split(",")]
        if not all(names):
            return self._named(piece)
        stay = []
        for found in names:
            assert found is not None
            name = found[1]
            if name in self.temporary:
                self.temporary.discard(name)
                stay.append(self._current(name))
            elif name in self.mentioned:
                self.mentioned.discard(name)
                self.generations[name] = self.generations.get(name, 1) + 1
        statement = f"DROP TEMPORARY TABLE IF EXISTS {', '.join(stay)}" if stay else "DO 0"
        lead = piece[: len(piece) - len(piece.lstrip())]
        return f"{lead}{statement}{self._delimiter}"

    def _current(self, name: str) -> str:
        number = self.generations.get(name, 1)
        return name if number == 1 else f"{name}_g{number}"

    def _named(self, text: str) -> str:
        """The text with today's names of tables and the script's database."""

        def replaced(found: re.Match[str]) -> str:
            word = found[0]
            return self.database if word == "test" else self._current(word)

        return re.sub(r"(?<![\w@$/#])[A-Za-z_]\w*(?![\w/$])", replaced, text)

    # -- pieces: comments, directives, statements

    def _pieces(self, text: str) -> Iterator[str]:
        """The text cut where mariadb-test cuts it; joined they are the text."""
        at, self._delimiter = 0, ";"
        while at < len(text):
            start = at
            while at < len(text) and text[at].isspace():
                at += 1
            line_end = text.find("\n", at)
            line_end = len(text) if line_end < 0 else line_end
            line = text[at:line_end]
            heredoc = _HEREDOC.match(line)
            if heredoc:
                word = heredoc[1].replace(";", " ").split()
                end = word[-1] if word and not word[-1].startswith(("$", "/")) and len(word) > 1 else "EOF"
                found = re.compile(rf"^{re.escape(end)}\s*$", re.MULTILINE).search(text, line_end)
                at = found.end() if found else line_end
                if not line.lstrip("- ").lower().startswith("perl"):
                    yield text[start:at]
            elif _PROGRAM.match(line):
                # Other programs are not run.
                at = line_end if line.startswith("--") else self._statement_end(text, at)
            elif line.startswith(("#", "--")):
                at = line_end
                changed = re.match(r"--\s*delimiter\s+(\S+)", line, re.IGNORECASE)
                if changed:
                    self._delimiter = changed[1]
                yield text[start:at]
            elif re.match(r"(if|while)\s*\(", line, re.IGNORECASE) or line.startswith(("{", "}")):
                opened = text.find("{", at)
                at = at + 1 if line[:1] in "{}" else (opened + 1 if opened >= 0 else line_end)
                yield text[start:at]
            else:
                at = self._statement_end(text, at)
                piece = text[start:at]
                changed = re.match(r"\s*delimiter\s+(\S+)", piece, re.IGNORECASE)
                if changed:
                    word = changed[1]
                    if word != self._delimiter and word.endswith(self._delimiter):
                        word = word[: -len(self._delimiter)]
                    yield piece
                    self._delimiter = word
                else:
                    yield piece

    def _statement_end(self, text: str, at: int) -> int:
        looked_for = re.compile(
            rf"{re.escape(self._delimiter)}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL
        )
        for found in looked_for.finditer(text, at):
            if found[0] == self._delimiter:
                return found.end()
        return len(text)
