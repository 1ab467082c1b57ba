"""Whether targets hold what their source holds, asked beside a run or while none is there (``raycdc verify``).

**Theory of operation.** One table is compared in rounds:

1. The newest commit record says a place L of the log: the target has all changes up to it.
2. The source is read by SELECTs of key ranges, each of which sees everything up to L (`source_rows`), and the target by
   a reader of its own (`targets`). What a transform computes or filters is computed again (`expressions`). Both sides'
   values get one form per logical type (`canonical`), and each row becomes two numbers of 64 bits: the hash of its key,
   and that of key and values (`digests`).
3. Counts and sums of these numbers, whatever the order of rows, are compared for the whole table. Equal sums: equal
   rows, and the log is not asked.
4. Else they are compared by ranges of key hashes, and in ranges that differ key by key. A key that differs is only a
   *candidate*.
5. The log is read from L up to U, its end once both sides were read (`log_changes`). Neither side can have a change
   behind U. So a key of which the log has no change in (L, U] had one value all the time, on both sides: a candidate
   like that is a difference, and nothing else is.
   The pipeline itself may have emptied the target to read the table again: every epoch is sealed before a target has
   anything of it, so the newest manifest is looked at after both sides were read.
6. The other candidates are compared again in the next round, when the target holds everything up to U. The log has
   their values, so both sides are asked for these keys alone (`some_rows`); the hashes say which of the rows that come
   count, so a server may compare keys as it likes. A side that cannot be asked is read whole. A key that changes in
   each round is told as such, and is no difference.

*Invariant:* nothing here is shared with what wrote the target. ``pyproject.toml`` forbids to import a sink's parts, but
for the class of its options; the source's own decoder is used, and only to read.

Ranges of key *hashes* are what both sides can tell without asking how the source orders its keys, which for texts only
that server knows.
"""
