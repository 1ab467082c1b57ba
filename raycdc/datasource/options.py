"""The options of the data source, and the pipeline that is made from them.

| option | meaning |
|---|---|
| `config` | a configuration as for ``raycdc run``; only its source and the intervals of its pipeline are used |
| `table` | the one table to read, ``DATABASE.TABLE`` by its name in the source (routes are not applied) |
| `state` | the folder of a stream's state; default: the path of the pipeline's state, followed by \
``.spark/DATABASE.TABLE`` |
| `until` | ``caught-up``: a stream ends at the present end of the source, for ``availableNow`` |
| `truncate` | ``fail`` (default), or ``row``: a truncation is a row with `_op` ``T`` and no `_sign` |
| `changelog` | ``true``: a bounded read returns every change instead of the present rows |
| `metadata` | ``false``: a bounded read has only the table's columns |
| `filter` | the source's ``snapshot.filter`` of the table, instead of the configuration's |
| `fields` | with MongoDB: ``snapshot.fields`` of the collection, with commas between them |
| `limit` | with MongoDB: ``snapshot.limit`` of the collection |

Rows of bounded reads are stored in the system's folder for temporary files (``TMPDIR``).

The conditions of a query over the DataFrame are not passed to the source: Spark 4.1 would keep the filtered result of a
Python data source, and use it for later queries over the same DataFrame that do not have this filter. Each of Spark's
processes makes the pipeline again, from the options alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.config.fields import TomlTable, TomlValue, section_of
from raycdc.config.load import config_from_dict, read_toml
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.model.rules.selector import plain_name
from raycdc.model.table import file_name
from raycdc.pipeline import Pipeline
from raycdc.plugins import did_you_mean
from raycdc.storage.url import is_url

OPTIONS = ("config", "table", "state", "until", "truncate", "changelog", "metadata", "filter", "fields", "limit")

_VALUES = {
    "until": ("caught-up",),
    "truncate": ("fail", "row"),
    "changelog": ("true", "false"),
    "metadata": ("true", "false"),
}

#: Sections about the stages after the source. They are left out, because the user's own job takes the place of these
#: stages.
_BEHIND_THE_SOURCE = ("sink", "route", "transform", "lookup", "ray", "spark")

#: Options of a source that list the tables that it captures.
_LISTS = ("tables", "collections")
#: Options of a source whose keys are tables, and those of its section about the snapshot.
_BY_TABLE = ("columns",)
_BY_TABLE_IN_SNAPSHOT = ("key", "filter", "fields", "limit", "per_collection")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of one read. Picklable; contains no secret, only the path of the configuration."""

    config: str
    table: TableId
    state: str = ""
    until: str | None = None
    truncate: str = "fail"
    changelog: bool = False
    metadata: bool = True
    #: Options of ``source.snapshot`` for the table, by their names.
    selection: Mapping[str, str | int | list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse the options. Raises `ConfigError` with every problem."""
        given = {name.lower(): value for name, value in options.items()}
        problems = [f"option {name!r} is unknown{did_you_mean(name, OPTIONS)}" for name in given.keys() - set(OPTIONS)]
        problems += [f"option {name!r} is missing" for name in ("config", "table") if not given.get(name)]
        for name, allowed in _VALUES.items():
            if name in given and given[name].lower() not in allowed:
                problems.append(f"option {name} = {given[name]!r}: it is {' or '.join(allowed)}")
        if "limit" in given and not given["limit"].isdecimal():
            problems.append(f"option limit = {given['limit']!r}: it is a number of documents")
        if problems:
            raise ConfigError(*sorted(problems))
        selection: dict[str, str | int | list[str]] = {name: given[name] for name in ("filter",) if name in given}
        if "fields" in given:
            selection["fields"] = [name.strip() for name in given["fields"].split(",")]
        if "limit" in given:
            selection["limit"] = int(given["limit"])
        return cls(
            config=given["config"],
            table=TableId.parse(given["table"]),
            state=given.get("state", ""),
            until=given.get("until"),
            truncate=given.get("truncate", "fail").lower(),
            changelog=given.get("changelog", "false").lower() == "true",
            metadata=given.get("metadata", "true").lower() == "true",
            selection=selection,
        )

    def pipeline(self, state: Path | None = None) -> Pipeline:
        """Return a pipeline that captures only this table, with its state in `state` (default: the stream's)."""
        try:
            data = dict(read_toml(Path(self.config)))
        except ConfigError as cause:
            raise ConfigError(f"option config: {cause}") from cause
        for section in _BEHIND_THE_SOURCE:
            data.pop(section, None)
        options = section_of(data, "pipeline")
        for name in ("mode", "on_existing", "route_mode"):
            options.pop(name, None)
        location = str(state or self.state or self._default_state(options))
        work = options.pop("work_dir", "") or f"./state/{options.get('name', '')}.work"
        options["state"] = location
        if is_url(location):
            options["work_dir"] = f"{work}.spark/{self.table}"
        source = section_of(data, "source")
        for listed in _LISTS:
            if listed in source:
                data["source"] = self._narrowed(source, listed)
        config = config_from_dict({**data, "pipeline": options, "sink": {"type": "console"}})
        return Pipeline(source=config.source, config=config)

    def _default_state(self, options: TomlTable) -> str:
        return f"{options.get('state') or 'state/' + str(options.get('name', ''))}.spark/{file_name(str(self.table))}"

    def _narrowed(self, source: TomlTable, listed: str) -> TomlTable:
        """Return the source's section for this table only, without keys about others."""
        name = str(self.table)
        narrowed = {**self._of_table(source, _BY_TABLE), listed: [plain_name(self.table)]}
        snapshot = source.get("snapshot")
        if isinstance(snapshot, Mapping):
            narrowed["snapshot"] = self._of_table(snapshot, _BY_TABLE_IN_SNAPSHOT)
        if self.selection:
            # A single word is MongoDB's strategy.
            before = {"strategy": snapshot} if isinstance(snapshot, str) else narrowed.get("snapshot", {})
            assert isinstance(before, Mapping)
            narrowed["snapshot"] = {**before, **{option: {name: value} for option, value in self.selection.items()}}
        narrowed.pop("exclude", None)
        return narrowed

    def _of_table(self, section: TomlTable, options: Collection[str]) -> dict[str, TomlValue]:
        """Return `section`; its `options` that have tables as keys keep only this table."""
        return {
            option: {table: each for table, each in value.items() if table == str(self.table)}
            if option in options and isinstance(value, Mapping)
            else value
            for option, value in section.items()
        }
