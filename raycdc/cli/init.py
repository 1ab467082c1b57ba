"""``raycdc init``: writes a commented configuration from a person's answers and the source's tables.

Before it writes the file, it predicts which tables a run would park, with the reasons that ``raycdc check`` gives.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from raycdc.cli.planning.schemas import table_findings, table_of
from raycdc.config import config_from_dict
from raycdc.config.init_questions import InitQuestions, Question, secret_in, toml_line, toml_list, toml_text
from raycdc.core.terminal_text import printable, printable_text
from raycdc.driver.resolve import next_run
from raycdc.errors import ConfigError, ExitCode, RaycdcError, SourceUnavailableError
from raycdc.model.rules.selector import plain_name, plain_table
from raycdc.plugins import PluginGroup, load_plugin

#: A reference to an environment variable without a default.
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
#: The width of a comment line with the reason of a parked table.
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class ParkForecast:
    """The tables that a run would park, with the reason of each; `problem` is why they are unknown."""

    refused: Mapping[str, str] = field(default_factory=dict)
    tables: int = 0
    problem: str = ""


def judge(text: str, *, password_variable: str = "") -> ParkForecast:
    """Predict which tables a run with the configuration `text` would park. Connects to the source, changes nothing."""
    environment = dict(os.environ)
    for variable in _VARIABLE.findall(text):
        # The password was just typed in. The other variables get empty texts, because listing the tables needs no other
        # secret.
        known = secret_in(variable).reveal() if variable == password_variable else ""
        environment.setdefault(variable, known)
    try:
        config = config_from_dict(tomllib.loads(text), environment=environment)
    except ConfigError:
        return ParkForecast()  # A secret of the sink is missing, or `check` will report the problem.
    try:
        run = next_run(config)
        schemas = {table: found.schema for table, found in run.tables.items()}
        findings = [finding for finding in table_findings(run, schemas) if finding.parks]
    except RaycdcError as error:
        return ParkForecast(problem=str(error))
    refused = {plain_name(table_of(finding)): finding.text for finding in findings}
    return ParkForecast(refused, len(schemas))


def without(
    section: Sequence[str], page: InitQuestions, chosen: Sequence[str], refused: Mapping[str, str]
) -> list[str]:
    """Return the lines of ``[source]`` with the `refused` tables in comments, each below its reason."""
    listed = f"{page.chosen} = {toml_list(chosen)}"
    marked = {name: why for name, why in refused.items() if name in chosen}
    others = {name: why for name, why in refused.items() if name not in chosen}
    if not refused or listed not in section:
        return list(section)
    lines: list[str] = []
    for line in section:
        if line == listed and marked:
            lines.append(f"{page.chosen} = [")
            for name in chosen:
                lines += _reason("  ", marked[name]) if name in marked else []
                lines.append(f"  {'# ' if name in marked else ''}{toml_text(name)},")
            lines.append("]")
        elif line.startswith("# exclude = ") and others:
            lines += [line for name, why in others.items() for line in _reason("", named(name, why))]
            lines.append(f"exclude = {toml_list(tuple(others))}")
        else:
            lines.append(line)
    return lines


def named(name: str, why: str) -> str:
    """Return the reason with the table's name in it."""
    return why if why.startswith(name) else f"{name}: {why}"


def _reason(indent: str, text: str) -> list[str]:
    lines = [f"{indent}#"]
    for word in printable(text).split():
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append(f"{indent}#")
        lines[-1] += f" {word}"
    return lines


_CHOICES_SHOWN = 20
#: The questions that have their own command-line option.
_OPTIONS = ("host", "port", "user", "password-env", "uri")
_SINK = "sink."
#: Synonyms of types that people type, with the types that they mean; and the schemes of addresses, with their types.
_DATABASES = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command line.

    `answers` are by names of questions; those of the sink have ``sink.`` before their names.
    """

    source: str
    sink: str
    answers: Mapping[str, str]
    tables: tuple[str, ...]
    name: str | None


def parse_answers(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` of ``--answer``, each with its own KEY."""
    answers: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not (key and separator and value):
            raise ConfigError(f"--answer {text} is not KEY=VALUE")
        answers[key] = value
    return answers


def write_config(path: Path, options: InitOptions, *, force: bool) -> int:
    """Ask for missing values (on a terminal), query the source, and write `path`."""
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already. Give another name, or overwrite it with --force")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}. Make it, or name another file.")
    source: InitQuestions = load_plugin(PluginGroup.SOURCES, options.source, key_path="--source").init_questions()
    if options.sink in _DATABASES:
        raise ConfigError(
            f"--sink {options.sink}: tables of a database are --sink jdbc, with "
            f"--answer sink.url=jdbc:{_DATABASES[options.sink]}://HOST:PORT/DATABASE and --answer sink.user=NAME"
        )
    sink: InitQuestions = load_plugin(PluginGroup.SINKS, options.sink, key_path="--sink").init_questions()
    _refuse_unknown(options, source, sink)
    answers, tables = _chosen(source, options)
    sink_answers = {each.name: _answer(each, options.answers, _SINK) for each in _sink_questions(sink)}
    name = options.name or _name_of(tables)
    write = options.answers.get(f"{_SINK}write", "upsert" if _has_write(sink) else "")
    section, sink_section = source.section(answers, tables), sink.section(sink_answers, ())
    text = _document(name, section, sink_section, write)
    judged = judge(text, password_variable=answers.get("password-env", ""))
    if judged.refused:
        if len(judged.refused) == judged.tables:
            raise _none_fits(judged, sink.type, changelog=write == "upsert")
        text = _document(name, without(section, source, tables, judged.refused), sink_section, write)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise ConfigError(
            f"{path} cannot be written: {cause.strerror}. Name a file in a folder that you can write to."
        ) from cause
    print(f"Wrote {path}.")
    for table in judged.refused:
        print(printable(f"Left out, each with its reason: {table}"))
    if judged.problem:
        print(printable_text(f"The tables could not be examined: {judged.problem}"))
    for line in dict.fromkeys([*source.before_run(answers), *sink.before_run(sink_answers)]):
        print(printable_text(f"Before a run: {line}"))
    print("\n".join(_next_steps(path, verify=write == "upsert" and source.verified)))
    return int(ExitCode.DONE)


def _chosen(source: InitQuestions, options: InitOptions) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the answers about the source, and the tables.

    If the source is unreachable, mention the trial server and ask again.
    """
    while True:
        answers = {each.name: _answer(each, options.answers) for each in source.questions()}
        try:
            return answers, _tables(source, answers, options.tables) if source.chooses else ()
        except SourceUnavailableError as unreachable:
            offer = f"No server to try with? Start one in another terminal:  raycdc sandbox {source.trial}"
            if not source.trial:
                raise
            if not sys.stdin.isatty():
                raise SourceUnavailableError(f"{unreachable}\n{offer}") from unreachable
            print(printable_text(f"{unreachable}\n{offer}"))
            if any(each.asked and each.name not in options.answers for each in source.questions()):
                print("Then answer again (Ctrl-C ends):")
            else:
                input("Then press Enter (Ctrl-C ends): ")


def _none_fits(judged: ParkForecast, sink: str, *, changelog: bool) -> ConfigError:
    reasons = "".join(f"\n  {named(table, why)}" for table, why in judged.refused.items())
    way = ", or keep every change as a row: --answer sink.write=changelog" if changelog else ""
    return ConfigError(f"A {sink} sink can hold none of the tables, so nothing was written.{reasons}\nName others{way}")


def _next_steps(path: Path, *, verify: bool) -> list[str]:
    steps = [
        ("check", "what is missing, and what fixes it"),
        ("plan", "the targets it would make"),
        ("run", "Ctrl-C leaves; the same command goes on"),
        ("status", "how far it is, from another terminal"),
        *([("verify", "whether both sides hold the same rows")] if verify else []),
    ]
    commands = [f"raycdc {command} {path}" for command, _ in steps]
    width = max(map(len, commands))
    return ["Next:", *(f"  {command:{width}}  {why}" for command, (_, why) in zip(commands, steps, strict=True))]


def _has_write(page: InitQuestions) -> bool:
    """Return True if the sink keeps tables equal by default."""
    write = page.model.model_fields.get("write")
    return write is not None and write.default == "upsert"


def _sink_questions(page: InitQuestions) -> list[Question]:
    """Return the questions of `page` without the path, for which the example of its key is used."""
    questions = []
    for question in page.questions():
        if question.name == "path":
            examples = page.model.model_fields["path"].examples or ["./lake"]
            questions.append(replace(question, default=str(examples[0]), asked=False))
        else:
            questions.append(question)
    return questions


def _refuse_unknown(options: InitOptions, source: InitQuestions, sink: InitQuestions) -> None:
    names = [*(q.name for q in source.questions()), *(f"{_SINK}{q.name}" for q in sink.questions())]
    for name in options.answers:
        if name not in names and name != f"{_SINK}path" and not (name == f"{_SINK}write" and _has_write(sink)):
            taken = ", ".join(map(_flag, names)) or "no answers"
            raise ConfigError(
                f"{_flag(name)} does not belong to source type {source.type} with sink type {sink.type}, which take "
                f"{taken}"
            )


def _flag(name: str) -> str:
    if name == f"{_SINK}path":
        return "--sink-path"
    return f"--{name}" if name in _OPTIONS else f"--answer {name}=..."


def _answer(question: Question, given: Mapping[str, str], prefix: str = "") -> str:
    value = given.get(prefix + question.name)
    if value is None and not question.asked:
        value = question.default
    return value or _ask(question.text, _flag(prefix + question.name), default=question.default)


def _ask(question: str, flag: str, *, default: str | None = None) -> str:
    """Ask for a value and return it.

    Without a terminal, return the default, or raise an error with the option to use.
    """
    if not sys.stdin.isatty():
        if default is None:
            raise ConfigError(f"{flag} is required if no person can be asked (standard input is no terminal)")
        return default
    while True:
        answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default
        if answer:
            return answer


def _tables(page: InitQuestions, answers: Mapping[str, str], wanted: Sequence[str]) -> tuple[str, ...]:
    try:
        names = page.choices(answers, wanted)
    except ValidationError as cause:
        raise _not_taken(page, cause) from None
    if wanted:
        return tuple(wanted)
    if not sys.stdin.isatty():
        shown = f"{', '.join(names[:_CHOICES_SHOWN])}{', ...' if len(names) > _CHOICES_SHOWN else ''}"
        seen = f"; there are {shown}" if names else ""
        raise ConfigError(f"--table is required if no person can be asked (standard input is no terminal){seen}")
    if not names:
        return tuple(_words(_ask(f"{page.noun} (names, separated by commas)", "--table")))
    print(f"{page.noun}:")
    for number, name in enumerate(names, 1):
        print(f"  {number:3} {printable(name)}")
    answer = _ask("Which (numbers or names, separated by commas)", "--table", default="all")
    if answer == "all":
        return tuple(names)
    return tuple(names[int(w) - 1] if w.isdecimal() and 0 < int(w) <= len(names) else w for w in _words(answer))


def _not_taken(page: InitQuestions, cause: ValidationError) -> ConfigError:
    """Return an error about the first invalid value of the section, which names the option that gave it."""
    first = cause.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    key_path = "--table" if key == page.chosen else _flag(key)
    return ConfigError(f"{key_path}: {str(first['msg']).removeprefix('Value error, ')}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _name_of(tables: Sequence[str]) -> str:
    """Return a pipeline name made of the first table's database."""
    named = plain_table(tables[0]) if tables else None
    database = named.db if named is not None else "".join(tables[:1]).split(".")[0].replace("\\", "")
    name = "".join(c for c in database if c.isascii() and (c.isalnum() or c in "-_"))
    return name or "pipeline"


def _document(name: str, source: Sequence[str], sink: Sequence[str], write: str) -> str:
    lines = [
        "# Check with: raycdc check FILE      Run with: raycdc run FILE      Every option: raycdc docs options",
        "",
        "[pipeline]",
        toml_line(f"name = {toml_text(name)}", "identity of the state and of the sink's commits; keep it"),
        toml_line(f"state = {toml_text(f'./state/{name}')}", "checkpoints; keep it as long as the target"),
        toml_line('# mode = "until-caught-up"', "stop when the log's present end is committed; default: continuous"),
        toml_line('# epoch_interval = "10s"', "fewer and larger commits; default: soon, up to 3,600 an hour"),
        toml_line('# engines = "always"', 'Ray reads, Spark writes from the start; "never": neither; default: "auto"'),
        "",
        "[source]",
        *source,
        "",
        "[readers]",
        toml_line("max = 4", "processes that share the snapshot"),
        "",
        "# [spark]",
        toml_line('# from_bytes = "4MiB"', "Spark writes epochs from this size on, this process smaller ones"),
        "",
        "[sink]",
        *sink,
    ]
    if write:
        other = {"upsert": 'or "changelog": every change is a row', "changelog": 'or "upsert": equal to the tables'}
        lines.append(toml_line(f"write = {toml_text(write)}", other.get(write, "")))
    return "\n".join(lines) + "\n"
