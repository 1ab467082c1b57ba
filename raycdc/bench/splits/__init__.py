"""Strategies of cutting a snapshot, and assignments of partitions to readers, compared on a user's own tables and
topics: ``raycdc bench splits``.

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
| `assignments` | the comparison of assignments: partitions read by one reader, and by more |
| `assigned`, `assignment_figures`, `assignment_advice`, `assignment_page` | how partitions come to readers, what was \
found, how many readers to take and why, and the page |
"""
