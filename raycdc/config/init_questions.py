"""The questions of ``raycdc init`` about one type of source or sink, and the section that it writes.

Every plug-in has an `InitQuestions`, which is made from the model of its section. A plug-in may have a subclass
instead, which may also query the server (`raycdc.plugins.Plugin.init`). Answers are texts, given by options or typed
in. Only `choices` connects to the server.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from raycdc.config.fields import Options, Secret
from raycdc.core.secrets import ReferenceResolver, has_reference
from raycdc.errors import ConfigError

#: Answers by the names of their questions.
Answers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a source or sink.

    `name` is a key of the section, and the option ``--NAME`` or ``--answer NAME=VALUE``.

    Without a `default` an answer is required. If `asked` is False, people are not asked; an option or the default gives
    the answer.
    """

    name: str
    text: str
    default: str | None = None
    asked: bool = True


class InitQuestions:
    """The questions of a type without its own class: one for each required key of the section.

    A key with a default is included if its `option` has ``init=True``.
    """

    #: A noun for the things to choose from, and the key of the section that lists the chosen ones. A sink has no such
    #: key.
    noun: ClassVar[str] = "Tables"
    chosen: ClassVar[str] = "tables"
    #: The kind of ``raycdc sandbox`` in which people can try this source.
    trial: ClassVar[str] = ""
    #: True if the output mentions ``raycdc verify``, which reads the source's tables again.
    verified: ClassVar[bool] = False

    def __init__(self, plugin_type: str, model: type[Options]) -> None:
        self.type = plugin_type
        self.model = model

    @property
    def chooses(self) -> bool:
        """Return True if the section lists tables."""
        return self.chosen in self.model.model_fields

    def questions(self) -> tuple[Question, ...]:
        """Return all questions, in the order of the section."""
        questions = []
        for name, key in self.model.model_fields.items():
            extra = key.json_schema_extra if isinstance(key.json_schema_extra, dict) else {}
            if name in ("type", self.chosen) or not (key.is_required() or extra.get("init")):
                continue
            text = (key.description or name).rstrip(".")
            example = key.examples[0] if key.examples and isinstance(key.examples[0], str) else None
            if key.annotation is Secret:
                questions.append(Question(name, text, f"${{env:{self._variable(name)}}}", asked=False))
            else:
                questions.append(Question(name, f"{text} (such as {example})" if example else text))
        return tuple(questions)

    def choices(self, answers: Answers, wanted: Sequence[str]) -> list[str]:
        """Return the names to choose from; empty if they are not known.

        If `wanted` has names, only these are returned. Raises `SourceError` if the source cannot be queried, or lacks a
        wanted name.
        """
        return list(wanted)

    def section(self, answers: Answers, chosen: Sequence[str]) -> list[str]:
        """Return the lines of TOML below ``[source]`` or ``[sink]``."""
        lines = [f"type = {toml_text(self.type)}"]
        for question in self.questions():
            kind, value = self.model.model_fields[question.name].annotation, answers[question.name]
            if kind is Secret:
                require_reference(value, f"--answer {question.name}=", self._variable(question.name))
            is_number = kind is int and value.isdecimal()
            lines.append(f"{question.name} = {value if is_number else toml_text(value)}")
        if self.chooses:
            lines.append(f"{self.chosen} = {toml_list(chosen)}")
        return lines

    def before_run(self, answers: Answers) -> list[str]:
        """Return what people must do before a run, one line each."""
        return self.unset(*(answers.get(question.name, "") for question in self.questions()))

    @staticmethod
    def unset(*texts: str) -> list[str]:
        """Return the problems that keep the references in `texts` from being resolved, one line each."""
        resolver = ReferenceResolver(os.environ)
        for text in texts:
            resolver.resolve(text, ("init",))
        return [problem.partition(": ")[2] for problem in resolver.problems]

    def _variable(self, name: str) -> str:
        return f"{self.type}_{name}".upper().replace("-", "_")


def require_reference(text: str, flag: str, variable: str) -> None:
    """Raise `ConfigError` if `text` is a secret in plain text.

    `variable` names an environment variable that could hold it.
    """
    if not has_reference(text):
        raise ConfigError(
            f"{flag} has a password, which others can see on the command line and in the file. Put it into a variable:"
            f"  export {variable}=...  and give  {flag} '${{env:{variable}}}'"
        )


def secret_in(variable: str, what: str = "Password") -> Secret:
    """Return the value of an environment variable.

    If the variable is not set, ask for the value once if there is a terminal; otherwise return an empty text.
    """
    value = os.environ.get(variable)
    if value is None and sys.stdin.isatty():
        value = _asked_for(variable, what)
    return Secret(value or "")


@cache
def _asked_for(variable: str, what: str) -> str:
    """Ask for a secret. The answer is kept in memory for the other questions of the command."""
    return getpass.getpass(f"{what} (not written to the file; {variable} is not set): ")


def toml_line(setting: str, comment: str) -> str:
    """Return a setting followed by a comment."""
    return f"{setting:<40}  # {comment}"


def toml_text(text: str) -> str:
    """Return a TOML string. A text with backslashes, such as a pattern, becomes a literal string."""
    return f"'{text}'" if "\\" in text and "'" not in text else json.dumps(text, ensure_ascii=False)


def toml_list(texts: Sequence[str]) -> str:
    """Return a TOML list of strings."""
    return f"[{', '.join(map(toml_text, texts))}]"
