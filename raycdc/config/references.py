"""``${env:NAME}``, ``${env:NAME:-default}`` and ``${file:PATH}`` in any text of the configuration.

``$${`` stands for a literal ``${``. Paths are relative to the working directory, as everywhere in the configuration.
The text behind a reference is never shown in a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Tables and lists inside of each other; no option has more than a few.
DEPTH_MAX = 32
#: The largest file of a secret or certificate.
FILE_BYTES_MAX = 1 << 20

_REFERENCE = re.compile(r"\$\$\{|\$\{(\w*):([^}]*)\}")

Place = tuple[str | int, ...]


class Resolver:
    """Resolves the references of one configuration; afterwards holds the `problems` and the `places` that had any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []
        self.places: set[Place] = set()

    def resolve(self, value: Any, place: Place = ()) -> Any:
        """`value` with all references in its texts replaced; ones that cannot be become problems."""
        if len(place) > DEPTH_MAX:
            self._problem(place[:4], f"tables and lists are nested more than {DEPTH_MAX} deep here")
            return None
        match value:
            case str():
                return self._text(_REFERENCE.sub(lambda matched: self._replace(matched, place), value), place)
            case dict():
                return {key: self.resolve(item, (*place, key)) for key, item in value.items()}
            case list():
                return [self.resolve(item, (*place, index)) for index, item in enumerate(value)]
            case _:
                return value

    def _text(self, text: str, place: Place) -> str:
        """`text`, unless it can be no path, name, address or password of anything."""
        if "\0" in text:
            self._problem(place, "holds a NUL character (\\u0000), which no path, name, address or password may have")
            return text.replace("\0", "")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._problem(place, "is not UTF-8 text; an environment variable may hold other bytes")
                return ""
        return text

    def _replace(self, matched: re.Match[str], place: Place) -> str:
        if matched[0] == "$${":
            return "${"
        self.places.add(place)
        kind, argument = matched[1], matched[2]
        match kind:
            case "env":
                return self._environment_variable(argument, place)
            case "file":
                return self._file(argument, place)
            case _:
                self._problem(place, f"{matched[0]} is no reference; known are ${{env:NAME}} and ${{file:PATH}}")
                return ""

    def _environment_variable(self, argument: str, place: Place) -> str:
        name, separator, default = argument.partition(":-")
        value = self._environment.get(name)
        if value is not None:
            return value
        if not separator:
            self._problem(place, f"the environment variable {name} is not set (export {name}=...)")
        return default

    def _file(self, argument: str, place: Place) -> str:
        try:
            with Path(argument).open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) <= FILE_BYTES_MAX:
                return content.decode().removesuffix("\n").removesuffix("\r")
            reason: str | None = f"it has more than {FILE_BYTES_MAX >> 20} MiB"
        except OSError as cause:
            reason = cause.strerror
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        except ValueError as cause:
            reason = str(cause)
        self._problem(place, f"the file {argument} cannot be read: {reason}")
        return ""

    def _problem(self, place: Place, text: str) -> None:
        self.problems.append(f"{show_place(place)}: {text}")


def has_reference(text: str) -> bool:
    """Whether `text` holds ``${env:…}`` or ``${file:…}``."""
    return any(matched[1] in ("env", "file") for matched in _REFERENCE.finditer(text))


def show_place(place: Place) -> str:
    """``("source", "tables", 0)`` as ``source.tables[0]``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
