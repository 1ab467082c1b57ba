"""``raycdc bench splits``: strategies of cutting a snapshot compared on a user's own tables, and the number of readers
that a user's topics are worth.

Each strategy really cuts the table and really reads chunks, and partitions are really read, over connections and in
processes like those of a job's readers; rows go nowhere. It writes nothing, needs no Ray and no Spark, and holds
nothing at the source but reads.

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
