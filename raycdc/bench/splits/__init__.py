"""``raycdc bench splits``: compares strategies of cutting a snapshot on a user's own tables, and numbers of readers for
a user's own topics.

Each strategy really cuts the table and reads chunks, and partitions are really read, over connections and in processes
like those of a job's readers; the rows are dropped. The benchmark only reads from the source, and needs neither Ray nor
Spark.

| module | has |
|---|---|
| `comparison` | what is done, in its order: cut, read with one reader, read with as many as there are cores |
| `readers` | the processes that read |
| `schedule` | how long other numbers of readers would take, from the chunks' times |
| `figures` | all that was found, as values and as JSON |
| `advice` | which strategy to take, and why |
| `page` | the same as one HTML page with plots |
| `partition_bench` | partitions read by one reader, and by more, and how many readers to take |
| `partition_figures` | which reader has which partition, and all that was found, as values and as JSON |
"""
