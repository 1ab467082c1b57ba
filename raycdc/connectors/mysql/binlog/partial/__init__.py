"""Updates that log JSON values as differences."""
