"""Incremental snapshots: a snapshot in chunks that meets one log without a lock (FLIP-27 and Flink CDC)."""
