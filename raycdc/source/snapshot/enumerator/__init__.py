"""The enumerator's side of incremental snapshots: plans chunks and assigns them to readers."""
