"""The life of a table in a log: its states, why it is parked, why it is resnapshotted, and commands about it."""
