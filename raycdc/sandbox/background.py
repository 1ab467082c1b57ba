"""Repeats a step in a thread during a test or a demo. An error of the step is raised when the test or the demo ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A step that takes longer than this counts as hanging.
_ENDS_WITHIN_S = 60.0


@contextmanager
def again_and_again(step: Callable[[], object], *, pause_s: float = 0.0) -> Iterator[None]:
    """Call `step` repeatedly in a thread while the block runs, with `pause_s` before each call.

    An error of `step` is raised at the end of the block, or added to the block's own error.
    """
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.wait(pause_s):
                step()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=work, name="again and again", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as failure:
        for error in errors:
            failure.add_note(f"The step had failed before: {error!r}")
        raise
    finally:
        ended.set()
        thread.join(_ENDS_WITHIN_S)
    if errors:
        raise errors[0]
