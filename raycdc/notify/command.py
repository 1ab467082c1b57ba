"""A receiver that is a program of this machine: no shell, the message as its standard input, and an end to its time."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from raycdc.notify.messages import Message
from raycdc.notify.outbox import NotSentError, OfOptions


class Command(OfOptions):
    """A `raycdc.notify.outbox.Receiver`. The program is in a session of its own, so that all of it can be ended."""

    def send(self, message: Message) -> None:
        """See `Receiver.send`. What the program prints goes nowhere: it may print what it likes."""
        environment = {
            **os.environ,
            "RAYCDC_EVENT": message.type,
            "RAYCDC_EVENT_ID": message.id,
            "RAYCDC_PIPELINE": message.pipeline,
        }
        try:
            process = subprocess.Popen(
                self._options.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as cause:
            raise NotSentError(f"it cannot be started ({cause.strerror})") from None
        try:
            process.communicate(message.body(), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            # It is not reaped yet, so its number is nobody else's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotSentError(f"it did not end within {self._timeout_s:g} s, and was killed") from None
        if process.returncode:
            raise NotSentError(f"it ended with exit code {process.returncode}")
