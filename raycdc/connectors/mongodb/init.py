"""The questions of ``raycdc init`` for MongoDB: which collections to read, and what their columns are.

`nested_types` describes the content of nested values in sampled documents, for columns of JSON. Pure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bson.raw_bson import RawBSONDocument

from raycdc.config import Secret
from raycdc.config.init_questions import (
    Answers,
    InitQuestions,
    Question,
    require_reference,
    toml_line,
    toml_list,
    toml_text,
)
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import discover, kind_of, layout_of, sample_of
from raycdc.connectors.mongodb.server.client import address_of, connect, probe
from raycdc.core.secrets import ReferenceResolver, has_reference
from raycdc.core.terminal_text import printable
from raycdc.errors import ConfigError, SourceError
from raycdc.model import LogicalType, TypeKind
from raycdc.model.rules.selector import TableSelector, plain_name

#: The limits of the description: levels below a column, and fields of a document.
_DEPTH_MAX, _FIELDS_MAX = 3, 12
_VALUES_MAX = 200


def nested_types(documents: Iterable[RawBSONDocument]) -> dict[str, str]:
    """Return the fields that hold documents or arrays, with their content: ``{city: string, zip: string}``,
    ``[string]``.
    """
    values: dict[str, list[object]] = {}
    for document in documents:
        for name, value in document.items():
            values.setdefault(name, []).append(value)
    return {
        name: _types(met, 0)
        for name, met in values.items()
        if any(isinstance(value, RawBSONDocument | list) for value in met[:_VALUES_MAX])
    }


def _types(values: Sequence[object], depth: int) -> str:
    """Return all types of `values`, with ``or`` between them."""
    seen = values[:_VALUES_MAX]
    types = sorted({kind_of(v) for v in seen if v is not None and not isinstance(v, RawBSONDocument | list)})
    documents = [value for value in seen if isinstance(value, RawBSONDocument)]
    if documents:
        types.append(_document(documents, depth))
    items = [item for value in seen if isinstance(value, list) for item in value]
    if items or any(isinstance(value, list) for value in seen):
        types.append(f"[{_types(items, depth + 1) if depth < _DEPTH_MAX else '...'}]")
    return " or ".join(types) or "null"


def _document(documents: Sequence[RawBSONDocument], depth: int) -> str:
    if depth >= _DEPTH_MAX:
        return "{...}"
    fields: dict[str, list[object]] = {}
    for document in documents:
        for name, value in document.items():
            fields.setdefault(name, []).append(value)
    described = [f"{name}: {_types(met, depth + 1)}" for name, met in list(fields.items())[:_FIELDS_MAX]]
    return f"{{{', '.join(described)}{', ...' if len(fields) > _FIELDS_MAX else ''}}}"


#: The number of collections whose columns are shown, and of columns of each.
_COLLECTIONS_SHOWN, _COLUMNS_SHOWN = 20, 60
#: The number of sampled documents whose nested values are read.
_NESTED_SAMPLE = 100
_URI_VARIABLE = "MONGODB_URI"


class MongoDbInitQuestions(InitQuestions):
    """The questions about MongoDB, with a list of the account's collections and of the columns in a sample of each."""

    noun = "Collections"
    chosen = "collections"
    trial = "mongodb"
    verified = True

    def questions(self) -> tuple[Question, ...]:
        text = "Connection string, as ${env:NAME} if it has a password"
        return (Question("uri", text, f"${{env:{_URI_VARIABLE}}}" if _URI_VARIABLE in os.environ else None),)

    def choices(self, answers: Answers, wanted: Sequence[str]) -> list[str]:
        selected = TableSelector(tuple(wanted) or (r".*\..*",))
        with connect(_resolved(answers["uri"])) as client:
            probe(client)
            names = [plain_name(table) for table in discover(client, selected, complete=False)]
            where = address_of(client)
        missing = sorted({plain_name(table) for table in selected.plain_names} - set(names))
        if missing or not names:
            unseen = ", ".join(missing or wanted) or "any collection"
            raise SourceError(
                f"The account of the connection string does not see {unseen} at {where}. Check the names, or grant it "
                'the role "read" on the database.'
            )
        return names

    def section(self, answers: Answers, chosen: Sequence[str]) -> list[str]:
        text = answers["uri"]
        uri = text if has_reference(text) else f"${{env:{_URI_VARIABLE}:-{text}}}"
        shown = shown_columns(_resolved(text), chosen)
        return [
            'type = "mongodb"',
            toml_line(
                f"uri = {toml_text(uri)}", 'a connection string, or "${env:NAME}" or "${file:PATH}" that holds it'
            ),
            "# names, or regular expressions that match DATABASE.COLLECTION as a whole",
            f"collections = {toml_list(chosen)}",
            "# exclude = ['crm\\.audit_.*']",
            toml_line(
                '# startup = "snapshot"', "read once, then end; default: then their changes, which needs a replica set"
            ),
            toml_line(
                '# schema = "document"', "_id and the whole document as text; default: inferred, a column per field"
            ),
            toml_line(
                '# on_type_mismatch = "rest"',
                "for listed columns: what does not fit, and other fields, are kept in _rest",
            ),
            '# snapshot = { chunk_size = "64MiB" }',
            "",
            *column_lines(shown),
        ]


def _resolved(text: str) -> Secret:
    """Return the connection string with its references resolved. Refuses a string that contains the password itself."""
    resolver = ReferenceResolver(os.environ)
    resolved = str(resolver.resolve(text, ("--uri",)))
    if resolver.problems:
        raise ConfigError(resolver.problems[0])
    try:
        parsed = parse_mongodb_uri(resolved)
    except ValueError as problem:
        raise ConfigError(f"--uri {problem}") from None
    if parsed.secrets:
        require_reference(text, "--uri", _URI_VARIABLE)
    return Secret(resolved)


@dataclass(frozen=True, slots=True)
class Shown:
    """The field types of one collection, as the configuration names them, and the content of nested fields."""

    columns: Mapping[str, str]
    nested: Mapping[str, str] = field(default_factory=dict)


def shown_columns(uri: Secret, collections: Sequence[str]) -> dict[str, Shown]:
    """Return the fields in a sample of each collection."""
    config = MongoDbSourceConfig.model_validate({"type": "mongodb", "uri": uri, "collections": list(collections)})
    shown = {}
    with connect(uri) as client:
        tables = discover(client, config.selector(), complete=False)
        for table, identity in list(tables.items())[:_COLLECTIONS_SHOWN]:
            layout = layout_of(client, config, table, identity)
            columns = {column.name: _name_of(column.type) for column in layout.fields[:_COLUMNS_SHOWN]}
            inside = nested_types(sample_of(client, table, _NESTED_SAMPLE)) if "json" in columns.values() else {}
            shown[str(table)] = Shown(columns, {name: text for name, text in inside.items() if name in columns})
    return shown


def column_lines(shown: Mapping[str, Shown]) -> list[str]:
    """Return the tables of columns as comment lines."""
    lines = [
        "# Columns are inferred from a sample, and are added when documents have more fields. List them here instead;",
        "# fields that are not listed are left out then, or kept in _rest with on_type_mismatch above.",
    ]
    if any(each.nested for each in shown.values()):
        lines.append("# Nested values are one column of JSON; their content is described below it.")
    for collection, each in shown.items():
        lines += ["#", f"# [source.columns.{_quoted(collection)}]"]
        for name, text in each.columns.items():
            lines.append(f"# {_quoted(name)} = {_quoted(text)}")
            if name in each.nested:
                lines.append(f"#   # {printable(each.nested[name])}")
    return lines


def _name_of(logical: LogicalType) -> str:
    return "uuid" if logical.kind is TypeKind.STRING and logical.native == "binData(4)" else logical.native


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
