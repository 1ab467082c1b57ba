"""A command as receiver: no shell, the message as its input, and an end to its time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from raycdc.config.sections.notifications import NotifyOptions
from raycdc.observe.notify.messages import check_body
from raycdc.observe.notify.notifier import test_message as tried
from raycdc.observe.notify.outbox import NotSentError
from raycdc.observe.notify.receivers import CommandReceiver


def command(*words: str, **options: object) -> CommandReceiver:
    return CommandReceiver(NotifyOptions.model_validate({"type": "command", "command": words, **options}))


def test_the_message_is_its_input_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    program = (
        "import os, sys; open(sys.argv[1], 'w').write(os.environ['RAYCDC_EVENT'] + sys.stdin.read() + sys.argv[2])"
    )
    command(sys.executable, "-c", program, str(tmp_path / "told"), "$(id); `id`").send(message := tried("shop"))
    told = (tmp_path / "told").read_text()
    assert told == f"test{message.body().decode()}$(id); `id`"
    check_body(message.body())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("/bin/sh", "-c", "exit 3"), "it ended with exit code 3"),
        (("/nowhere/at/all",), "it cannot be started (No such file or directory)"),
    ],
)
def test_one_that_fails_says_how(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(NotSentError, match=re.escape(text)):
        command(*words).send(tried("shop"))


def test_one_that_hangs_is_killed_with_all_that_it_started() -> None:
    with pytest.raises(NotSentError, match=r"it did not end within 0\.2 s, and was killed"):
        command("/bin/sh", "-c", "sleep 1000 & sleep 1000", timeout="200ms").send(tried("shop"))
