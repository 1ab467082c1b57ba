"""Generated tables and changes: a source to try pipelines with, and the connector to copy.

| module | content |
|---|---|
| `plugin` | the ``[source]`` section, and the entry point |
| `source` | the implementation of `raycdc.source.connector`: what a connector must write |
| `generator` | stands in for a database server; no other connector needs such a module |
"""
