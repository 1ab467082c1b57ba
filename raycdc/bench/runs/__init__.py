"""Measures a user's own pipeline, with a temporary target: ``raycdc bench run``.

A measured run ends after a limited time or number of rows. Its configuration is the user's own, with a temporary state
and target, and possibly with changed settings that the user wants to try. The figures come from the run's events.
"""
