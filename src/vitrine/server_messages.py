"""Which messages of PostgreSQL may be shown: those that cannot quote the values of rows.

A message may quote a row in nearly every class of errors: a cast to tsquery raises a syntax error with the value, a
cast to regclass a missing relation, a trigger whatever its author wrote. So only known texts are shown. Everything else
is described by its code, table, column and constraint.
"""

import re
from functools import cache

_NAME = r'("[^"]+"|[\w.$]+)'

# fmt: off
_WITHOUT_NAMES = (
    r"canceling statement due to (statement timeout|lock timeout|user request|conflict with recovery)",
    r"canceling autovacuum task",
    r"terminating connection due to (administrator command|idle-session timeout|idle-in-transaction timeout"
    r"|transaction timeout|unexpected postmaster exit|conflict with recovery)",
    r"terminating connection because of crash of another server process",
    r"the database system is (starting up|shutting down|in recovery mode|not yet accepting connections)",
    r"deadlock detected",
    r"could not serialize access due to (concurrent update|concurrent delete"
    r"|read/write dependencies among transactions)",
    r"sorry, too many clients already",
    r"remaining connection slots are reserved for .*",
    r"out of (memory|shared memory)",
    r"could not (extend|write|write to|create|open|read|fsync) file \"(base|global|pg_[a-z]+)/[\w./]+\"(: [\w ]+)?",
    r"could not write to (file|temporary file)(: [\w ]+)?",
    r"temporary file size exceeds \"?temp_file_limit\"? \([0-9]+kB\)",
    r"cannot execute [A-Z ]+ in a read-only transaction",
    r"cannot insert multiple commands into a prepared statement",
    r"current transaction is aborted, commands ignored until end of transaction block",
    r"stack depth limit exceeded",
    r"invalid memory alloc request size [0-9]+",
    r"row is too big: size [0-9]+, maximum size [0-9]+",
    r"(tables|target lists) can have at most [0-9]+ (columns|entries)",
    r"each (UNION|INTERSECT|EXCEPT) query must have the same number of columns",
    r"aggregate functions are not allowed in [A-Z ]+",
    r"unsupported XML feature",
)
_WITH_NAMES = (
    rf"(relation|schema|view|type|column|constraint|index|role|database|collation|sequence) {_NAME} does not exist",
    rf"(relation|schema|type|column|constraint|index) {_NAME}( of relation {_NAME})? already exists",
    rf"column {_NAME} of relation {_NAME} does not exist",
    rf"column {_NAME} (must appear in the GROUP BY clause or be used in an aggregate function)",
    rf"column reference {_NAME} is ambiguous",
    rf"column {_NAME} is of type [\w ().\"\[\],]+ but expression is of type [\w ().\"\[\],]+",
    rf"(subquery uses ungrouped column) {_NAME} from outer query",
    rf"(missing|invalid reference to) FROM-clause entry for table {_NAME}",
    r"function [\w.\"]+\([\w ().\"\[\],]*\) does not exist",
    r"operator does not exist: [\w ().\"\[\],<>=!@#%^&|~*/+-]+",
    r"could not identify an (equality|ordering) operator for type [\w ().\"\[\],]+",
    r"cannot cast type [\w ().\"\[\],]+ to [\w ().\"\[\],]+",
    r"[A-Z/ ]+ types [\w ().\"\[\],]+ and [\w ().\"\[\],]+ cannot be matched",
    rf"permission denied for (table|schema|view|relation|function|sequence|materialized view|foreign table|column"
    rf"|database|type|language|foreign server) {_NAME}(\([\w ().\",]*\))?",
    r"permission denied to create [\w \"]+",
    rf"must be owner of (table|schema|view|relation|materialized view|function|type) {_NAME}",
    rf"query would be affected by row-level security policy for table {_NAME}",
    rf"materialized view {_NAME} has not been populated",
    rf"could not obtain lock on relation {_NAME}",
    rf"too many connections for (role|database) {_NAME}",
    rf"index row size [0-9]+ exceeds [\w ]+ for index {_NAME}",
    rf"cannot (drop|alter) [\w ]+ {_NAME}( of [\w ]+ {_NAME})?( because other objects depend on it)?",
    rf"{_NAME} is not a (table|view|sequence|table or view|table, view, or foreign table)",
    r"there is no unique or exclusion constraint matching the ON CONFLICT specification",
    rf"syntax error at (or near {_NAME}|end of input)",
)
# fmt: on


@cache
def _known() -> re.Pattern[str]:
    """Compiled on first use: that takes longer than most imports, and most commands meet no error of the server."""
    return re.compile("|".join(f"(?:{text})" for text in (*_WITHOUT_NAMES, *_WITH_NAMES)))


_RAISED_FOR_VALUES = frozenset({"42P01", "3F000", "42704", "42883", "42601", "42602", "42703"})
"""States of errors about names that PostgreSQL also raises for a value: 'x'::regclass, 'x'::tsquery."""


def shown(sqlstate: str, message: str, known: str | None) -> str | None:
    """The message, if it cannot quote the value of a row.

    `known` is the text of the configuration: a name that stands in it is no secret. None: no row was being read.
    """
    if not _known().fullmatch(message):
        # guarantee: K6
        return None
    if known is None or sqlstate not in _RAISED_FOR_VALUES:
        return message
    names = re.findall(r'"([^"]+)"|(\S+) does not exist', message)
    parts = [part for quoted, plain in names for part in (quoted or plain).strip('"').split(".")]
    return message if parts and all(part in known for part in parts) else None
