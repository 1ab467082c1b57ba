"""Arguments and options that several commands have, and the way a group of commands is made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table, as DB.TABLE.")]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file.")]
StatePath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file, or its state folder.")]
NewPlace = Annotated[str, typer.Argument(metavar="TO", help="An empty folder, or a URL such as s3://BUCKET/PREFIX.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a running pipeline.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="PREDICATE",
        help="Which rows: what stands behind WHERE in SQL; a filter document of MongoDB.",
        show_default=False,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log to stderr; show tracebacks of errors.")]

#: Of a command that reads its options by itself.
OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command_group(help_text: str, short: str | None = None, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Commands under one name; `short` is for the list of all."""
    return typer.Typer(cls=cls, help=help_text, short_help=short, no_args_is_help=True, rich_markup_mode=None)
