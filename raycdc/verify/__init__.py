"""Compares targets with their source, during a run or without one (``raycdc verify``).

**Theory of operation.** One table is compared in rounds:

1. The newest commit record has a position L of the log: the target has all changes up to L.
2. The source is read by SELECTs of key ranges, each of which sees all changes up to L (`source_rows`). The target is
   read by a reader of its kind (`targets`). The results of transforms are computed again (`expressions`). The values of
   both sides get one form per logical type (`canonical`), and each row becomes two numbers of 64 bits: the hash of its
   key, and the hash of key and values (`digests`).
3. Counts and sums of these numbers, which do not depend on the order of rows, are compared for the whole table. If the
   sums are equal, the rows are equal, and the log is not read.
4. Otherwise the sums are compared by ranges of key hashes. In ranges that differ, the hashes are compared key by key. A
   key that differs is only a *candidate*.
5. The log is read from L up to U, which is its end after both sides were read (`source_rows.LogChanges`). Neither side
   can have a change after U. So a key without a change in (L, U] had the same value all the time, on both sides. A
   candidate without such a change is a difference. All other candidates are undecided. There is one exception: the
   pipeline itself may have emptied the target to read the table again. Every epoch is sealed before a target has any of
   its rows, so the newest manifest, which is checked after both sides were read, shows that.
6. The undecided candidates are compared again in the next round, when the target has all changes up to U. The log has
   the values of their keys, so only the rows with these keys are requested from both sides (`source_rows.SomeRows`).
   The hashes decide which of the returned rows count, so a server may compare keys in its own way. A side that cannot
   select rows by these keys is read completely. A key that changes in each round is reported as such, and is no
   difference.

*Invariant:* nothing here is shared with the writer of the target. ``pyproject.toml`` forbids imports of a sink's
modules, except for the class of its options. The source's own decoder is used, but only to read.

Ranges are ranges of key *hashes*, because both sides can be hashed without the source's order of keys, which for texts
only its server knows.
"""
