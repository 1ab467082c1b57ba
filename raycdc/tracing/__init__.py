"""A trace of each epoch for a collector of OpenTelemetry (``[traces]``): how long it was sealed, staged and committed.

`epoch_traces` hears of an epoch's parts and makes its trace, a plain value (`trace`); `outbox` has a thread that hands
traces to a collector and bears with one that is away; `otlp` speaks to it, and alone loads OpenTelemetry's libraries.
`traced` puts them together for a run. Nothing here is waited for by rows, and no trace has a value of one.
"""
