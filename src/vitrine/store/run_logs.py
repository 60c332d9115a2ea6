"""The last log lines of each run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from vitrine.ids import RunId
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_one


class RunLog(NamedTuple):
    """The lines of a run, oldest first, as `logs.RunLines` made them."""

    lines: Sequence[Mapping[str, Any]] = ()
    dropped: int = 0  # earlier lines that are not kept


def save(connection: Connection, run_id: RunId, log: RunLog) -> None:
    """Replace the lines of a run. The commit does not wait for the disk: a lost line costs nothing."""
    execute(connection, "save_run_log", run_id=run_id, lines=Jsonb(list(log.lines)), dropped=log.dropped)


def load(connection: Connection, run_id: RunId) -> RunLog:
    row = fetch_one(connection, "get_run_log", run_id=run_id)
    return RunLog(row["lines"], row["dropped"]) if row else RunLog()
