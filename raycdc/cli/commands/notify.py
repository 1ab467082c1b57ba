"""``raycdc notify``: the receivers of notifications."""

from __future__ import annotations

from raycdc.cli.commands.options import ConfigPath, command_group

notify = command_group("Try the receivers of notifications.")


@notify.callback()
def _notify() -> None:
    """Keeps its one command from being the group itself."""


@notify.command("test", short_help="Send a test notification to each receiver.")
def notify_test(config: ConfigPath) -> int:
    """Send a test notification to each [[notify]] of CONFIG, and say whether it was taken."""
    from raycdc.cli.notify import send_test

    return send_test(config)
