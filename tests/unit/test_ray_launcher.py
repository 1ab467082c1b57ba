"""What a coordinator that did not begin is taken for."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from raycdc.errors import StateError
from raycdc.runtime.launcher import CoordinatorLostError
from raycdc.runtime.ray_launcher import error_of_begin


@pytest.mark.parametrize("cause", [ActorDiedError(), ActorUnavailableError("no answer", b"\x01" * 16)])
def test_a_process_that_ends_while_it_begins_is_one_to_replace(cause: RayActorError) -> None:
    assert isinstance(error_of_begin(cause), CoordinatorLostError)


def test_a_coordinator_that_cannot_be_made_ends_the_run() -> None:
    failed = RayActorError(error_msg="in its creation\nNo module named 'x'", actor_init_failed=True)
    error = error_of_begin(failed)
    assert isinstance(error, StateError)
    assert "No module named 'x'" in str(error)
