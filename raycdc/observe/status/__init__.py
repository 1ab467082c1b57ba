"""The status of a run: one frozen value, `RunStatus`, that one listener of the run's events keeps up to date.

The terminal (`raycdc.cli.screens.progress`), ``status --json``, the control API and the web UI
(`raycdc.observe.status.documents`), ``/metrics`` and notifications are views: functions of this value that store
nothing. `status` has the value and its changes by events, without clocks and threads; `keeper` has the listener;
`stages` and `persistent_map` are parts of the value.
"""

from raycdc.observe.status.keeper import StatusKeeper
from raycdc.observe.status.stages import Bottleneck, Speed, Stages
from raycdc.observe.status.status import CommitReport, KnownTable, Moment, RunMessage, RunProcess, RunStatus

__all__ = [
    "Bottleneck",
    "CommitReport",
    "KnownTable",
    "Moment",
    "RunMessage",
    "RunProcess",
    "RunStatus",
    "Speed",
    "Stages",
    "StatusKeeper",
]
