"""Measures a user's own pipeline, with a temporary target: ``raycdc bench run``.

A run lasts for a limited time or number of rows. Its configuration is the user's, with a temporary state and target,
and possibly other settings to try. The figures come from the run's events.
"""
