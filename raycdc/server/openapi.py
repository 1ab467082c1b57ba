"""Describes the API as an OpenAPI document, which is generated from its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raycdc.driver.command_queue import CommandState
from raycdc.observe.status.model import VERSION, schema
from raycdc.source.tables.table_commands import TableAction

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

_TEXT = {"type": "string"}
#: The parameters that choose the tables of an answer.
_CHOOSING = [
    {"name": name, "in": "query", "required": False, "schema": _TEXT} for name in ("table", "phase", "limit", "after")
]
_CODE = {"type": "object", "properties": {"code": _TEXT}}
_SCHEMA = {
    "type": "object",
    "properties": {
        "table": _TEXT,
        "version": _TEXT,
        "columns": {"type": "array", "items": {"type": "object"}},
        "primary_key": {"type": "array", "items": _TEXT},
    },
}
_VERIFICATION = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "table": _TEXT,
        "state": {"enum": ["running", "done", "failed"]},
        "results": {"type": "array", "items": {"type": "object"}},
        "text": _TEXT,
    },
}
_COMMAND = {
    "type": "object",
    "required": ["action", "table"],
    "additionalProperties": False,
    "properties": {
        "action": {"enum": [*map(str, TableAction)]},
        "table": _TEXT,
        "where": {
            **_TEXT,
            "description": "Which rows alone, as the source takes a predicate: for backfill and resnapshot.",
        },
        "id": {
            **_TEXT,
            "pattern": "^[0-9a-z]{8,64}$",
            "description": "The asker's own: the same twice is one command. Without it one is made.",
        },
    },
}
_COMMAND_STATUS = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "action": {"enum": [*map(str, TableAction)]},
        "table": _TEXT,
        "state": {"enum": [*map(str, CommandState)]},
        "text": _TEXT,
    },
}


def description() -> JsonSchemaValue:
    """Return the OpenAPI 3.1 document."""
    status = schema()
    parts = status.pop("$defs", {})
    accepted = _operation("Ask for something to be done.", {"type": "object", "properties": {"id": _TEXT}}, 202)
    body = {"required": True, "content": {"application/json": {"schema": _ref("Command")}}}
    events = {"200": {"description": "OK", "content": {"text/event-stream": {"schema": _TEXT}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "raycdc", "version": str(VERSION)},
        "security": [{"token": []}],
        "paths": {
            "/v1/status": {
                "get": {**_operation("The status of the pipeline.", _ref("Status")), "parameters": _CHOOSING}
            },
            "/v1/tables": {
                "get": {
                    **_operation("The status of its tables.", _many("tables", "TableReport")),
                    "parameters": _CHOOSING,
                }
            },
            "/v1/commands": {
                "get": _operation("Those that are remembered.", _many("commands", "CommandStatus")),
                "post": {**accepted, "requestBody": body},
            },
            "/v1/commands/{id}": {
                "get": {
                    **_operation("What became of it.", _ref("CommandStatus")),
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": _TEXT}],
                }
            },
            "/v1/events": {"get": {"summary": "The events of the run, as they come.", "responses": events}},
            "/v1/updates": {"get": {"summary": "The data of the web UI, every second.", "responses": events}},
            "/v1/links": {"post": _operation("The code of a new link to the page.", _CODE)},
            "/v1/schema": {
                "get": {
                    **_operation("The columns of a table.", _SCHEMA),
                    "parameters": [{"name": "table", "in": "query", "required": True, "schema": _TEXT}],
                }
            },
            "/v1/verifications": {"post": _operation("Compare a table during the run.", _VERIFICATION, 202)},
            "/v1/verifications/{id}": {
                "get": {
                    **_operation("How the comparison is.", _VERIFICATION),
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": _TEXT}],
                }
            },
            "/v1/openapi.json": {"get": _operation("This document.", {"type": "object"})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**parts, "Status": status, "Command": _COMMAND, "CommandStatus": _COMMAND_STATUS},
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _many(key: str, name: str) -> JsonSchemaValue:
    return {"type": "object", "properties": {key: {"type": "array", "items": _ref(name)}}}


def _operation(summary: str, answer: JsonSchemaValue, code: int = 200) -> JsonSchemaValue:
    content = {"application/json": {"schema": answer}}
    return {"summary": summary, "responses": {str(code): {"description": "OK", "content": content}}}
