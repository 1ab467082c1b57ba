"""The messages of one receiver: in order, tried again, given up in the end, and never in anybody's way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from raycdc.observe.notify.messages import Message
from raycdc.observe.notify.notifier import test_message as tried
from raycdc.observe.notify.outbox import FILE_NAME, WAITING_MAX, DeliveryLimits, NotificationOutbox, NotSentError, Sent

PATIENT = DeliveryLimits(retry_s=3600.0, end_s=60.0)


class Receiver:
    """Takes messages while `open`; else says so, or blocks until it is set free."""

    name, key = "the receiver", "k"

    def __init__(self, *errors: Exception, blocks: bool = False) -> None:
        self._errors = [*errors]
        self.free = threading.Event()
        if not blocks:
            self.free.set()
        self.asked = threading.Event()
        self.taken: list[str] = []

    def send(self, message: Message) -> None:
        self.asked.set()
        self.free.wait()
        if self._errors:
            raise self._errors.pop(0)
        self.taken.append(message.id)


def outbox(
    receiver: Receiver, folder: Path, warnings: list[str], limits: DeliveryLimits = PATIENT
) -> NotificationOutbox:
    return NotificationOutbox(receiver, limits, Sent(folder / FILE_NAME), warnings.append)


def close(box: NotificationOutbox, wait_s: float = 600.0) -> None:
    box.end()
    box.wait(time.monotonic() + wait_s)


def test_messages_arrive_in_order_once_and_not_again_in_the_next_run(tmp_path: Path) -> None:
    receiver, warnings = Receiver(), list[str]()
    messages = [tried(f"p{number}") for number in range(3)]
    for _ in range(2):
        box = outbox(receiver, tmp_path, warnings)
        for message in (*messages, *messages):
            box.put(message)
        close(box)
    assert receiver.taken == [message.id for message in messages]
    assert warnings == []
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_one_that_waited_for_its_turn_knows_what_was_sent_meanwhile(tmp_path: Path) -> None:
    receiver = Receiver()
    waiting = outbox(receiver, tmp_path, [])
    first = outbox(receiver, tmp_path, [])
    first.put(message := tried("p"))
    close(first)
    waiting.put(message)
    close(waiting)
    assert receiver.taken == [message.id]


def test_a_receiver_that_is_away_is_asked_again_and_the_end_does_not_wait_for_the_pause(tmp_path: Path) -> None:
    receiver, warnings = Receiver(NotSentError("away", after_s=3000.0)), list[str]()
    box = outbox(receiver, tmp_path, warnings)
    box.put(message := tried("p"))
    receiver.asked.wait()
    close(box)
    assert (receiver.taken, warnings) == ([message.id], [])


def test_one_that_will_never_take_it_is_told_of_and_the_next_message_goes_on(tmp_path: Path) -> None:
    receiver, warnings = Receiver(NotSentError("it answers with 404", again=False)), list[str]()
    box = outbox(receiver, tmp_path, warnings)
    box.put(tried("p"))
    box.put(second := tried("q"))
    close(box)
    assert receiver.taken == [second.id]
    assert warnings == ["The notification test was not taken by the receiver, and is dropped: it answers with 404."]


def test_a_receiver_that_fails_in_another_way_is_told_of_without_its_words(tmp_path: Path) -> None:
    receiver, warnings = Receiver(UnicodeError("geheim")), list[str]()
    box = outbox(receiver, tmp_path, warnings)
    box.put(tried("p"))
    box.put(second := tried("q"))
    close(box)
    assert receiver.taken == [second.id]
    assert warnings == ["The notification test was not taken by the receiver, and is dropped: UnicodeError."]


def test_one_that_is_away_for_too_long_is_given_up(tmp_path: Path) -> None:
    receiver, warnings = Receiver(NotSentError("away")), list[str]()
    box = outbox(receiver, tmp_path, warnings, DeliveryLimits(retry_s=0.0, end_s=60.0))
    box.put(tried("p"))
    close(box)
    assert (receiver.taken, len(warnings)) == ([], 1)


def test_the_end_does_not_wait_for_one_that_hangs_and_says_what_is_dropped(tmp_path: Path) -> None:
    receiver, warnings = Receiver(blocks=True), list[str]()
    box = outbox(receiver, tmp_path, warnings)
    for number in range(WAITING_MAX + 5):
        box.put(tried(f"p{number}"))
    receiver.asked.wait()
    close(box, wait_s=0.0)
    assert len(warnings) == 2
    assert f"dropped: {WAITING_MAX} (test)" in warnings[0]
    assert "5 notifications to the receiver were dropped" in warnings[1]
    receiver.free.set()


def test_a_file_that_is_damaged_or_cannot_be_written_costs_a_repeated_message_only(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"version": 1, "sent": [')
    receiver = Receiver()
    box = outbox(receiver, tmp_path, [])
    box.put(message := tried("p"))
    close(box)
    nowhere = outbox(receiver, tmp_path / "gone", [])
    nowhere.put(message)
    close(nowhere)
    assert receiver.taken == [message.id, message.id]
