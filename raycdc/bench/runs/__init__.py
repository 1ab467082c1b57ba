"""A user's own pipeline, measured into a target that is thrown away: ``raycdc bench run``.

| module | has |
|---|---|
| `trial` | the configuration of such a run, from the user's, with other settings to try |
| `measured` | a run for a bounded time or number of rows: what its events say of rows and time |
"""
