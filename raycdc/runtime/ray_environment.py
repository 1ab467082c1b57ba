"""Settings that Ray reads from the environment when it is imported. Call `prepare` before anything imports Ray."""

from __future__ import annotations

import os

from raycdc.runtime import ray_private

_SETTINGS = {
    # Workers run at niceness 15 by default; beside Spark at 0 the readers, and with them the heartbeats, would starve.
    "RAY_worker_niceness": "0",
    # An actor that was killed is our supervisor's business; Ray would print its traceback as well.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # SIGTERM is ours: Ray's C++ would take it for a crash of its own, from its start on.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    # On a busy machine a worker takes longer than Ray's 60 s to begin, and is then ended; whoever waits for it would do
    # so for ever.
    "RAY_worker_register_timeout_seconds": "1800",
    # Whoever starts Ray would wait for its first workers, also with Python's lock held: a run that has begun in process
    # would stand still for seconds.
    "RAY_prestart_worker_first_driver": "0",
    # Seconds after which Ray's C++ ends this process when the head is gone; `ray_head` sees it earlier, and says so.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "180",
}


def prepare(address: str) -> None:
    """Set what the user has not set. `address` is that of ``[ray]``."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local":
        # Ray does this for a private cluster anyway; with the explicit setting it does not warn about it at each start.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        ray_private.set_token()
        # Actors here are children of this process and have its interpreter: there is no environment to make for them.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    else:
        ray_private.take_token_away()
