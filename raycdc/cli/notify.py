"""``raycdc notify test``: sends a test message to every receiver."""

from __future__ import annotations

from pathlib import Path

from raycdc.config import load_config
from raycdc.core.terminal_text import printable_text
from raycdc.errors import ConfigError, ExitCode
from raycdc.observe.notify.notifier import receiver_of, test_message
from raycdc.observe.notify.outbox import NotSentError


def send_test(path: Path) -> int:
    """Send one message to every receiver, and print the result of each.

    Raises `ConfigError` if a message was not accepted.
    """
    config = load_config(path)
    if not config.notifications:
        raise ConfigError(f"{path} has no [[notify]]. raycdc docs notifications shows one.")
    refused = []
    for options in config.notifications:
        receiver = receiver_of(options)
        try:
            receiver.send(test_message(config.pipeline.name))
        except NotSentError as error:
            refused.append(f"{receiver.name} has not taken it: {error}.")
        except Exception as wrong:  # noqa: BLE001 - of the URL or this machine; its text may be secret
            refused.append(f"{receiver.name} has not taken it: {type(wrong).__name__}.")
        else:
            print(printable_text(f"{receiver.name} has taken it."))
    if refused:
        raise ConfigError(*refused)
    return int(ExitCode.DONE)
