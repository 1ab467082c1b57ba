"""Targets: what they have committed, which are parked, and what each gets of an epoch."""
