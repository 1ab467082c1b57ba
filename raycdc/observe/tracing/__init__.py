"""Sends a trace of each epoch to a collector of OpenTelemetry (``[traces]``): the times of sealing, staging and
committing.

`epoch_traces` collects an epoch's parts and makes its trace, a plain value, and `traced` does that for a run. `otlp`
sends traces by OpenTelemetry's batch processor and exporter, and is the only module that imports these. No row waits
for tracing, and no trace contains a value of a row.
"""
