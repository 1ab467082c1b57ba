"""Incremental snapshots: chunks of tables are read without a lock and merged with one log (FLIP-27 and Flink CDC)."""
