"""The questions of ``raycdc init`` about one type of source or sink, and the section that it writes.

Every plug-in has a page: this one, made from the model of its section, or a subclass that can ask the server more
(`raycdc.plugins.Plugin.init`). A page answers from texts alone, as they were given by options or typed in; only
`choices` connects.
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
    """One question. `name` is a key of the section, and the option ``--NAME`` or ``--answer NAME=VALUE``.

    Without a `default` an answer is required. A question that is not `asked` is answered by an option or its default.
    """

    name: str
    text: str
    default: str | None = None
    asked: bool = True


class InitQuestions:
    """The questions of a type without its own class: one for each required key of the section.

    A key with a default is included if its `option` has ``init=True``.
    """

    #: The things that can be chosen, and the key of the section that lists them; a sink has no such key.
    noun: ClassVar[str] = "Tables"
    chosen: ClassVar[str] = "tables"
    #: The kind of ``raycdc sandbox`` that people can try such a source with.
    trial: ClassVar[str] = ""
    #: True if ``raycdc verify``, which reads the source's tables again, is mentioned.
    verified: ClassVar[bool] = False

    def __init__(self, plugin_type: str, model: type[Options]) -> None:
        self.type = plugin_type
        self.model = model

    @property
    def chooses(self) -> bool:
        """Return True if the section lists tables."""
        return self.chosen in self.model.model_fields

    def questions(self) -> tuple[Question, ...]:
        """All questions, in the order of the section."""
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
        """Return names to choose from, only the `wanted` ones if any; empty if they are not known.

        Raises `SourceError` if the source cannot be queried, or lacks wanted ones.
        """
        return list(wanted)

    def section(self, answers: Answers, chosen: Sequence[str]) -> list[str]:
        """Lines of TOML below ``[source]`` or ``[sink]``."""
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
        """The things that people must do before a run, a line each."""
        return self.unset(*(answers.get(question.name, "") for question in self.questions()))

    @staticmethod
    def unset(*texts: str) -> list[str]:
        """The problems that keep the references in `texts` from being resolved, a line each."""
        resolver = ReferenceResolver(os.environ)
        for text in texts:
            resolver.resolve(text, ("init",))
        return [problem.partition(": ")[2] for problem in resolver.problems]

    def _variable(self, name: str) -> str:
        return f"{self.type}_{name}".upper().replace("-", "_")


def require_reference(text: str, flag: str, variable: str) -> None:
    """Refuse a secret in plain text; `variable` is one that could hold it."""
    if not has_reference(text):
        raise ConfigError(
            f"{flag} has a password, which others can see on the command line and in the file. Put it into a variable:"
            f"  export {variable}=...  and give  {flag} '${{env:{variable}}}'"
        )


def secret_in(variable: str, what: str = "Password") -> Secret:
    """The value of an environment variable; asked for once on a terminal where it is not set, else empty."""
    value = os.environ.get(variable)
    if value is None and sys.stdin.isatty():
        value = _asked_for(variable, what)
    return Secret(value or "")


@cache
def _asked_for(variable: str, what: str) -> str:
    """Kept for the other questions of the command, and nowhere else."""
    return getpass.getpass(f"{what} (not written to the file; {variable} is not set): ")


def toml_line(setting: str, comment: str) -> str:
    """A setting with a comment."""
    return f"{setting:<40}  # {comment}"


def toml_text(text: str) -> str:
    """A TOML string: literal where it holds backslashes, as patterns do."""
    return f"'{text}'" if "\\" in text and "'" not in text else json.dumps(text, ensure_ascii=False)


def toml_list(texts: Sequence[str]) -> str:
    """A TOML list of strings."""
    return f"[{', '.join(map(toml_text, texts))}]"
