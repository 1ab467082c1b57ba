"""The control door of a running pipeline: its status as one versioned document, and the ways to ask for it.

`model` is the document, `collect` keeps it up to date, `api` answers over HTTP, `server` runs that beside the pipeline,
and `client` finds a running pipeline by its state. `at_rest` makes the same document of a state that nobody runs.
"""
