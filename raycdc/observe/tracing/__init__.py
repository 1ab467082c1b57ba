"""A trace of each epoch for a collector of OpenTelemetry (``[traces]``): how long it was sealed, staged and committed.

`epoch_traces` hears of an epoch's parts and makes its trace, a plain value (`trace`). `otlp` sends traces by
OpenTelemetry's batch processor and exporter, and alone loads these. `traced` puts both together for a run. Nothing here
is waited for by rows, and no trace has a value of one.
"""
