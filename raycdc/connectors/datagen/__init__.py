"""Generated tables and changes: a source to try pipelines with, and the connector to copy.

| module | is |
|---|---|
| `plugin` | the ``[source]`` section, and the entry point |
| `source` | the page `raycdc.source.connector` filled in: what a connector must write |
| `generator` | what stands in for a server here; no other connector has anything like it |
"""
