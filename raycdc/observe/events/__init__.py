"""The events of a run, a closed set of frozen values.

`raycdc.observe.status.progress` reports them, and ``raycdc run`` shows them.

`run_events` has the values, `listeners` passes each event to the listeners, and `as_json` converts events to lines of
``run --json``, whose keys must not change, because programs read them. Each line also has `ts` and `pipeline` (``raycdc
docs control``):

| event | when | fields |
|---|---|---|
| `starting` | before `started`, one per step of the start | `step`: its name, for people (not in ``--json``) |
| `waiting` | a standby waits for the driver that has the state | `for`: that driver, `state` |
| … | another start checks if that driver still has it | `at_most_s` beside them |
| `took_over` | a standby that waited has the state now | `reason`, `generation` |
| `started` | processes are up, and again whenever they change | `pids`, `read_by` and `written_by` (`driver`, `ray`, \
`spark`), and `engines_due_s` where Ray and Spark are to take over |
| `engines_promoted` | a run that began in the driver's process reads through Ray's actors from now on | \
`after_s`: seconds since it began to read |
| `scaling` | the number of readers changes, or their nodes do | `readers`, `waiting` (for a place), `nodes` (readers \
by node), `reason` |
| `progress` | twice a second; of more than a hundred tables less often, and those that changed | tables: phase, \
chunks, rows, values lost, rows left out; lags; readers; `bottleneck`: `rate_limit`, while `source.rows_per_second` or \
`bytes_per_second` holds the readers back |
| `commit` | an epoch is in the sink | `epoch`, `tables`, `rows`, `seconds` = `staging_s` + `commit_s`, `rows_read_by` \
and `rows_written_by`: rows by who read and who wrote them |
| `warning` | a problem that the user should know; the run continues | `text` |
| `stalled` | a stage of a table or split has not moved for `pipeline.watchdog`; again while it lasts | `stage` \
(`raycdc.core.activity`), `table`, `split`, `reader`, `doing`, `note`, `seconds`, `text` |
| `resumed` | the stage moves again | as last reported |
| `parked` | a table is not followed (also at each start) | `table`, `phase`, `again`, `reason`, `position`, `ts_ms` |
| `table_phase` | a table is in another phase | `table`, `from`, `to` |
| `snapshot_done` | a table's snapshot is in the sink | `table`, `rows` |
| `snapshots_done` | no table is in its snapshot any more | `tables`: how many this run finished |
| `schema_changed` | an epoch with a change of a table's schema is in the sink | `table`, `target`, `epoch`, `changes` |
| `recovered` | a run goes on after one that was killed or failed, or after a loss of its own | `after`, `epoch`, \
`replayed`, `dropped`, `text` |
| `command` | a command about a table was taken, or refused | `id`, `action`, `table`, `tables`, `refused`, `text` |
| `new_table` | a table that the state did not know is followed from now on | `table`, `text` |
| `caught_up` | a bounded run reached its end | `rows_read_by`, `rows_written_by`: of all its epochs |
| `stopped` | a run that was to stop has sealed and committed what it had read | the same |
| `error` | the run ends with it | `error`: its class, `text` |

Light to import: it loads nothing of a source or an engine.
"""

from raycdc.observe.events.as_json import event_to_json
from raycdc.observe.events.listeners import Listeners
from raycdc.observe.events.run_events import (
    RATE_LIMIT,
    After,
    CaughtUp,
    Commanded,
    Committed,
    EnginesAtWork,
    EnginesPromoted,
    Failed,
    Lags,
    Listener,
    NewTable,
    PartitionLags,
    ReaderFigures,
    Recovered,
    RunEvent,
    RunProgress,
    Scaling,
    SchemaChanged,
    SnapshotDone,
    SnapshotsDone,
    StageResumed,
    StageStalled,
    StandbyWaiting,
    Started,
    Starting,
    Stopped,
    TableFigures,
    TableParked,
    TablePhaseChanged,
    TookOver,
    Warned,
    level_of,
)

__all__ = [
    "RATE_LIMIT",
    "After",
    "CaughtUp",
    "Commanded",
    "Committed",
    "EnginesAtWork",
    "EnginesPromoted",
    "Failed",
    "Lags",
    "Listener",
    "Listeners",
    "NewTable",
    "PartitionLags",
    "ReaderFigures",
    "Recovered",
    "RunEvent",
    "RunProgress",
    "Scaling",
    "SchemaChanged",
    "SnapshotDone",
    "SnapshotsDone",
    "StageResumed",
    "StageStalled",
    "StandbyWaiting",
    "Started",
    "Starting",
    "Stopped",
    "TableFigures",
    "TableParked",
    "TablePhaseChanged",
    "TookOver",
    "Warned",
    "event_to_json",
    "level_of",
]
