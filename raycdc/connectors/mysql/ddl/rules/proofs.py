"""The reasons why a statement of the log, or a part of it, changes no captured table.

A rule that ignores something returns one of these. A statement without such a reason is followed, or parks its tables.
"""

from __future__ import annotations

from raycdc.source.tables.verdicts import Ignore

OF_TEMPORARY = Ignore("only its session sees a temporary table, and the log has none of its rows")
NAMES_NONE = Ignore("it names no captured table, nor a tool's table beside one, nor a database that has such tables")
OF_A_TOOL = Ignore("rows of a schema change tool's table are never read; what is known of its columns was noted")
REPAIRS_NONE = Ignore("REPAIR TABLE does nothing to tables of this engine")
OF_DEFAULTS = Ignore("a database's defaults are for tables that are created later")
DROPS_NONE = Ignore("no table of the dropped name was followed, so that its target has no rows of one")
CHANGES_NOTHING = Ignore("the table is the same before and behind it, in all that is carried")
STAYS_PARKED = Ignore("the table is parked, and the event that it waits for is the same as before")
ROWS_OF_PARKED = Ignore("no row of a parked table is passed on, and it is looked at again before one is")
KEEPS_ITS_NAME = Ignore("behind all renames of the statement the table has the name that it had before")
OF_ANOTHER_NAME = Ignore("the name is not captured")
BETWEEN_RENAMES = Ignore("its tool has the table ready that gets the name next, and a name without a table has no rows")
NOT_FOLLOWED = Ignore("no table of the name was followed, so that its target has no rows of one")
