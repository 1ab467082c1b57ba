"""A trace of each epoch for a collector of OpenTelemetry (``[traces]``): how long sealing, staging and committing took.

`epoch_traces` collects an epoch's parts and makes its trace, a plain value (`trace`). `otlp` sends traces by
OpenTelemetry's batch processor and exporter, and is the only module that imports these. `traced` connects both for a
run. No row waits for tracing, and no trace contains a value of one.
"""
