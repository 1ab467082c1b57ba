"""Messages that cannot be decoded, where masks hide something: they are told of by place and reason alone."""

from __future__ import annotations

import pytest

from raycdc.formats.api import BadMessageError
from tests.unit.test_kafka_reader import Rig, maxwell

BAD = {
    "cut": b'{"data": {"name": "planted"',
    "unfit": maxwell({"id": "planted", "name": "a"}),
    "unknown type": maxwell({"id": 1, "name": "a"}).replace(b'"insert"', b'"planted"'),
}


def bring(rig: Rig, *messages: bytes) -> None:
    rig.bring(*messages)
    rig.allow()


@pytest.mark.parametrize("message", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_of_a_bad_message_nothing_shows_where_there_are_masks(message: bytes, on_error: str) -> None:
    assert b"planted" in message
    rig = Rig(hides=True, on_error=on_error)
    rig.add()
    if on_error == "fail":
        with pytest.raises(BadMessageError, match=r"^m/0@0: .*not shown, because the pipeline has masks") as told:
            bring(rig, message)
        assert "planted" not in str(told.value)
        return
    bring(rig, message, maxwell({"id": 1, "name": "a"}))
    rig.seal(1)
    [letter] = [row for row in rig.output.sealed[1] if "reason" in row]
    assert (letter["topic"], letter["offset"], letter["key"], letter["value"]) == ("m", 0, None, None)
    assert "planted" not in letter["reason"]
