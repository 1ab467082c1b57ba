"""Secrets by reference to what may say something else later: read, refused without being told, and read again."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raycdc.clients.logins import Logins
from raycdc.config import Secret, config_from_dict
from raycdc.config.fields import TomlTable
from raycdc.core import secrets
from raycdc.core.secrets import ReferenceResolver, Renewed, as_private, from_private, newest
from raycdc.errors import ConfigError

SAID = "S3cret-of-a-vault"


def vault(argument: str) -> str:
    """A plug-in, as in the manual."""
    if argument != "cdc/password":
        raise LookupError(SAID)
    return SAID


def number(_: str) -> int:
    return 7


def late(_: str) -> str:
    raise TimeoutError(SAID)


CALLED, ANSWERS = threading.Semaphore(0), threading.Event()


def hangs(_: str) -> str:
    CALLED.release()
    assert ANSWERS.wait(600)
    return SAID


def configured(password: str) -> TomlTable:
    source = {"type": "mysql", "host": "db1", "user": "cdc", "password": password, "tables": ["shop.orders"]}
    return {"pipeline": {"name": "p"}, "source": source, "sink": {"type": "console"}}


def password_of(text: str) -> Secret:
    secret: Secret = config_from_dict(configured(text)).source.password  # type: ignore[attr-defined]
    return secret


def test_a_file_is_read_again_also_where_the_secret_was_sent(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    secret = password_of(f"${{file:{file}}}")
    sent: Secret = pickle.loads(pickle.dumps(secret))
    assert [newest(one.reveal()) for one in (secret, sent)] == ["first", "first"]
    file.write_text("second\n")
    assert [newest(one.reveal()) for one in (secret, sent)] == ["second", "second"]
    file.unlink()
    assert newest(sent.reveal()) == "second", "as it was last"
    assert repr(secret) == "***"


def test_a_file_that_is_just_being_written_anew_is_as_it_was_last(tmp_path: Path) -> None:
    """Emptied and then written, as `echo NEW > FILE` does: no login as nobody, and not kept as the last one."""
    (file := tmp_path / "password").write_text("first")
    (always := tmp_path / "suffix").write_text("")
    plain = password_of(f"${{file:{file}}}").reveal()
    within = password_of(f"cdc:${{file:{file}}}@db1${{file:{always}}}").reveal()
    for said in ("first", "second", "third"):
        file.write_text(said)
        assert [newest(plain), newest(within)] == [said, f"cdc:{said}@db1"]
        file.write_text("")
        assert [newest(plain), newest(within)] == [said, f"cdc:{said}@db1"]


def test_what_a_command_prints_and_a_function_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "KEPT_S", 0.0)
    monkeypatch.setenv("SAID", SAID)
    command = f"{sys.executable} -c 'import os; print(os.environ[\"SAID\"])'"
    assert newest(password_of(f"${{command:{command}}}").reveal()) == SAID
    secret = password_of(f"${{plugin:{__name__}:vault cdc/password}}")
    assert newest(secret.reveal()) == SAID
    assert password_of("${env:SAID}").reveal() == SAID


def test_a_function_that_hangs_is_waited_for_so_long_and_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = f"${{plugin:{__name__}:hangs cdc/password}}"
    monkeypatch.setattr(secrets, "ANSWER_TIMEOUT_S", 0.05)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"hangs …\} did not answer within 0\.05 s"):
                password_of(reference)
        assert CALLED.acquire(timeout=600)
        assert not CALLED.acquire(blocking=False), "a second thread hangs beside the first"
    finally:
        ANSWERS.set()
    monkeypatch.setattr(secrets, "ANSWER_TIMEOUT_S", 600.0)
    assert password_of(reference).reveal() == SAID


def test_whoever_asks_waits_for_his_own_answer_alone_and_two_who_ask_the_same_for_one() -> None:
    answers, begun, goes_on = secrets._Answers(), threading.Event(), threading.Event()
    asked: list[str] = []

    def slow(argument: str) -> str:
        asked.append(argument)
        begun.set()
        assert goes_on.wait(600)
        return f"of {argument}"

    with ThreadPoolExecutor(3) as pool:
        try:
            first = pool.submit(answers.get, "command", "vault", slow)
            assert begun.wait(600)
            second = pool.submit(answers.get, "command", "vault", slow)
            other = pool.submit(answers.get, "command", "else", lambda argument: f"of {argument}")
            assert other.result(60) == "of else", "nobody waits for a command that is another one's"
            assert not first.done()
        finally:
            goes_on.set()
        assert [first.result(600), second.result(600)] == ["of vault"] * 2
    assert asked == ["vault"]


def test_an_answer_that_fails_is_told_to_all_who_wait_for_it_and_asked_for_again_by_the_next() -> None:
    answers, begun, goes_on = secrets._Answers(), threading.Event(), threading.Event()

    def fails(_: str) -> str:
        begun.set()
        assert goes_on.wait(600)
        raise ValueError("ended with exit code 1")

    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(answers.get, "command", "vault", fails)
            assert begun.wait(600)
        finally:
            goes_on.set()
        with pytest.raises(ValueError, match="exit code 1"):
            first.result(600)
    assert answers.get("command", "vault", lambda _: SAID) == SAID


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (f"${{command:{sys.executable} -c 'print(1/0)'}}", "ended with exit code 1; its standard error says why"),
        ("${command:/no/such/command}", "cannot be run: No such file or directory"),
        ("${command:}", "names no command"),
        (f"${{plugin:{__name__}:vault else}}", "failed with LookupError"),
        (f"${{plugin:{__name__}:late}}", "failed with TimeoutError"),
        (f"${{plugin:{__name__}:number}}", "answered with int, not with a text"),
        (f"${{plugin:{__name__}:nobody}}", "cannot be imported"),
        ("${plugin:nobody x}", "is neither one plug-in of the group raycdc.secrets (none) nor module:function"),
        ("${vault:x}", "is no reference; known are ${env:NAME}, ${file:PATH}, ${command:WORDS}"),
    ],
)
def test_one_that_cannot_be_read_is_refused_without_its_text(reference: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        password_of(reference)
    assert "source.password: " in str(refused.value)
    assert told in str(refused.value)
    assert SAID not in str(refused.value)


def test_properties_of_librdkafka_stay_renewed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    section = {
        "type": "kafka",
        "bootstrap_servers": "k:9092",
        "topics": ["t"],
        "format": {"type": "maxwell-json"},
        "properties": {"sasl": {"password": f"${{file:{file}}}", "username": "cdc"}, "ssl.key.password": "x"},
    }
    source = config_from_dict({**configured("x"), "source": section}).source
    properties: dict[str, str] = source.properties  # type: ignore[attr-defined]
    file.write_text("second")
    assert newest(properties["sasl.password"]) == "second"
    assert [type(properties[name]) for name in ("sasl.username", "ssl.key.password")] == [str, str]


def test_a_text_of_the_environment_alone_is_a_plain_one() -> None:
    resolver = ReferenceResolver({"A": "b"})
    assert type(resolver.resolve("${env:A}")) is str
    assert isinstance(resolver.resolve("${file:/dev/null}"), Renewed)


@pytest.mark.parametrize(
    "way", [lambda secret: pickle.loads(pickle.dumps(secret)), lambda s: from_private(as_private(s))]
)
def test_a_process_that_has_its_secret_of_the_driver_waits_for_the_next_one(way: Callable[[str], str]) -> None:
    """It may begin between the server's change and the file's; the driver was let in before."""
    secret, logins = Renewed("old", "${file:/dev/null}"), Logins()
    assert not logins.may_change("db:1", "cdc", secret)
    assert not logins.may_change("db:1", "cdc", copy.deepcopy(secret))
    assert logins.may_change("db:1", "cdc", way(secret))
    assert not logins.may_change("db:1", "cdc", way("old"))
    arrived = way(secret)
    assert isinstance(arrived, Renewed)
    assert arrived.template == secret.template
