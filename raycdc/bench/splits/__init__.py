"""``raycdc bench splits``: compares strategies of cutting a snapshot on a user's own tables, and numbers of readers for
a user's own topics.

Each strategy really cuts the table and reads chunks; partitions are really read, too. Connections and processes are
like those of a job's readers. The rows are dropped. The benchmark only reads from the source, and needs neither Ray nor
Spark.

| module | has |
|---|---|
| `comparison` | the steps in their order: cut, read with one reader, read with as many readers as there are cores |
| `readers` | the processes that read |
| `schedule` | the predicted times of other numbers of readers, from the times of the chunks |
| `figures` | the results, as values and as JSON |
| `advice` | the recommended strategy, with the reason |
| `page` | the results as one HTML page with plots |
| `partition_bench` | reads partitions with one reader and with more, and recommends a number of readers |
| `partition_figures` | the assignment of partitions to readers, and the results, as values and as JSON |
"""
