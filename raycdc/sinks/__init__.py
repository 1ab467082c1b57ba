"""Sinks: one room each behind `raycdc.sinks.api`."""
