"""The API in OpenAPI's words, made from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raycdc.control.commands import CommandPhase, TableAction
from raycdc.control.model import VERSION, schema

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue


def description() -> JsonSchemaValue:
    """An OpenAPI 3.1 document."""
    status = schema()
    parts = status.pop("$defs", {})
    texts = {"type": "string"}
    command = {
        "type": "object",
        "required": ["action", "table"],
        "additionalProperties": False,
        "properties": {
            "action": {"enum": [*map(str, TableAction)]},
            "table": texts,
            "where": {**texts, "description": "Limits the rows that are read again, in the source's language."},
            "request": {**texts, "description": "The asker's own name for it: the same twice is one command."},
        },
    }
    state = {
        "type": "object",
        "properties": {
            "id": texts,
            "command": {"$ref": "#/components/schemas/TableCommand"},
            "phase": {"enum": [*map(str, CommandPhase)]},
            "text": texts,
        },
    }
    tables = {"type": "object", "properties": {"tables": {"type": "array", "items": _ref("TableReport")}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "raycdc", "version": str(VERSION)},
        "security": [{"token": []}],
        "paths": {
            "/v1/status": {"get": _operation("The status of the pipeline.", _ref("Status"))},
            "/v1/tables": {
                "get": {
                    **_operation("The status of its tables.", tables),
                    "parameters": [_query(name) for name in ("table", "phase", "limit", "after")],
                }
            },
            "/v1/commands": {
                "post": {
                    **_operation("Ask for something to be done.", {"type": "object", "properties": {"id": texts}}, 202),
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": _ref("TableCommand")}},
                    },
                }
            },
            "/v1/commands/{id}": {
                "get": {
                    **_operation("What became of it.", _ref("CommandState")),
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": texts}],
                }
            },
            "/v1/events": {
                "get": {
                    "summary": "The events of the run, as `raycdc run --json` prints them.",
                    "responses": {"200": {"description": "OK", "content": {"text/event-stream": {"schema": texts}}}},
                }
            },
            "/v1/openapi.json": {"get": _operation("This document.", {"type": "object"})},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**parts, "Status": status, "TableCommand": command, "CommandState": state},
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str) -> JsonSchemaValue:
    return {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}


def _operation(summary: str, answer: JsonSchemaValue, code: int = 200) -> JsonSchemaValue:
    content = {"application/json": {"schema": answer}}
    return {"summary": summary, "responses": {str(code): {"description": "OK", "content": content}}}
