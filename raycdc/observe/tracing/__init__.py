"""Sends a trace of each epoch to a collector of OpenTelemetry (``[traces]``): the times of sealing, staging and
committing.

`epoch_traces` collects the parts of an epoch and makes its trace, a plain value. `traced` does this for a run. `otlp`
sends traces with OpenTelemetry's batch processor and exporter; it is the only module that imports OpenTelemetry. No row
waits for tracing, and no trace contains a value of a row.
"""
