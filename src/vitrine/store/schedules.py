"""When pipelines are due: by their schedules, and in chains behind other pipelines."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from vitrine.core import schedule
from vitrine.core.status import STEPS, PipelineId, RequestKind, RunOptions, Status
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError, TransitionRefused
from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one

DUE_LIMIT = 200
"""Due times that one statement consumes."""


def first_due(connection: Connection, definition: Definition, zone: tzinfo = UTC) -> datetime | None:
    """The first due time, by the database's clock; None if the definition is disabled or has no schedule."""
    if definition.schedule is None or not definition.enabled:
        return None
    row = fetch_one(connection, "get_time")
    return definition.schedule.next_after(row["now"], zone=zone) if row else None


class Due(NamedTuple):
    """What a poll has to do."""

    schedules: bool
    reconciles: bool
    leases: bool  # some have expired


def get_due(connection: Connection) -> Due:
    """Whether `fire_schedules`, `fire_reconciles` and `expire_leases` would find anything."""
    row = fetch_one(connection, "get_due")
    return Due(**row) if row else Due(schedules=True, reconciles=True, leases=True)


def fire_schedules(connection: Connection, zone: tzinfo = UTC) -> list[str]:
    """Consume every due time that has passed; names of the pipelines for which this requested a run.

    Due times that were missed cause one run together: the next due time is the first one in the future.
    """
    fired: list[str] = []
    while due := fetch_all(connection, "list_due", limit=DUE_LIMIT):
        following = [_next_due(row, zone) for row in due]
        seen = {"ids": [row["id"] for row in due], "due": [row["next_due_at"] for row in due], "following": following}
        rows = fetch_all(connection, "fire_schedules", **seen, steps=STEPS)
        fired += [row["name"] for row in rows if row["status"] == Status.RUN_REQUESTED]
        if len(rows) < DUE_LIMIT:
            break  # these were all, or other runners are consuming the others
    if fired:
        execute(connection, "notify", name=fired[0])  # one notification wakes up every runner
    return fired


def fire_reconciles(connection: Connection) -> list[str]:
    """Request a deep reconcile of every idle pipeline whose `reconcile_interval` has passed; their names."""
    options = Jsonb(RunOptions(deep=True).stored())
    rows = fetch_all(connection, "fire_reconciles", kind=RequestKind.RECONCILE, options=options, steps=STEPS)
    return [row["name"] for row in rows]


def _next_due(row: DictRow, zone: tzinfo) -> datetime | None:
    """After a postponed run, the regular due time is the next one, or counts as the last one if it has passed."""
    regular = row["regular_due_at"]
    if regular is not None and regular > row["now"]:
        return regular
    last = regular or row["next_due_at"]
    try:
        return schedule.parse(row["schedule_interval"]).next_after(row["now"], last=last, zone=zone)
    except (ValueError, TypeError):
        return None  # written to the table without validation: this run ends FAILED with the reason, and is the last


def seconds_until_due(connection: Connection) -> float | None:
    """Seconds until the next due time, by the database's clock; None if no pipeline is scheduled."""
    row = fetch_one(connection, "seconds_until_due")
    return row["seconds"] if row else None


class Upstream(NamedTuple):
    """A pipeline that another one runs after."""

    name: str
    succeeded_at: datetime | None  # None: it has not succeeded since the other one was last started by a wave


class Mart(NamedTuple):
    """A table of the store's database that a pipeline writes."""

    pipeline: str
    relation: tuple[str, str]  # schema and name
    touch_column: str | None
    columns: list[str]


def list_marts(connection: Connection) -> list[Mart]:
    """Every mart of an enabled pipeline that exists in the store's database."""
    return [
        Mart(row["name"], (row["schema"], row["relation"]), row["touch_column"], row["columns"])
        for row in fetch_all(connection, "list_marts")
    ]


def lock_chains(connection: Connection) -> None:
    """Changes of chains run one after another, until the transaction ends: two of them could close a cycle together.

    Must come before the lock on a pipeline: a session that has this one locks pipelines.
    """
    fetch_one(connection, "lock_chains")


def set_upstreams(connection: Connection, upstreams: Mapping[PipelineId, Sequence[str]]) -> None:
    """Store what pipelines run after, by name; ConfigError if they would wait for one another.

    Must be called under `lock`, and the names must exist. An upstream that stays keeps its success.
    """
    # every upstream is locked before a chain is: the end of a run locks in this order, too
    for pipeline_id, names in upstreams.items():
        execute(connection, "add_upstreams", id=pipeline_id, names=list(names))
    for pipeline_id, names in upstreams.items():
        execute(connection, "remove_upstreams", id=pipeline_id, names=list(names))
    refuse_cycle(connection)


def refuse_missing(connection: Connection, names: Sequence[str]) -> None:
    """ConfigError if a pipeline is to run after one that does not exist."""
    refuse_unknown(names, list_enabled(connection, names))


def list_enabled(connection: Connection, names: Sequence[str]) -> dict[str, bool]:
    """Those of the names that a pipeline has, and whether it is enabled."""
    return {row["name"]: row["enabled"] for row in fetch_all(connection, "list_enabled", names=list(names))}


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """The same with the names that are known."""
    if missing := ", ".join(f"'{name}'" for name in names if name not in known):
        raise ConfigError(
            f"after: there is no pipeline {missing}; create it first, or apply both files together",
            code="UNKNOWN_UPSTREAM",
        )


def refuse_cycle(connection: Connection, name: str | None = None, after: Sequence[str] = ()) -> None:
    """ConfigError if pipelines wait for one another; with a name, as if that one ran after the given ones."""
    stored = {row["name"]: row["after"] for row in fetch_all(connection, "list_chains")}
    if cycle := find_cycle({**stored, name: after} if name else stored):
        raise ConfigError(
            f"after: {' waits for '.join(cycle)}, so that none of them would ever start; remove one of these from"
            " `after`",
            code="CHAIN_CYCLE",
        )


def find_cycle(after: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Names of pipelines of which each runs after the next, the first one again at the end; None if there is none."""
    try:
        TopologicalSorter(after).prepare()
    except CycleError as exc:
        return list(reversed(exc.args[1]))  # graphlib lists each one before what follows it
    return None


def refuse_dependants(
    connection: Connection, pipeline_id: PipelineId, name: str, besides: Collection[str] = ()
) -> None:
    """TransitionRefused if pipelines run after this one, besides those named."""
    rows = fetch_all(connection, "list_dependants", id=pipeline_id)
    if dependants := [row["name"] for row in rows if row["name"] not in besides]:
        raise TransitionRefused(
            f"{', '.join(dependants)} run after '{name}'; remove it from their `after` first", code="HAS_DEPENDANTS"
        )


def list_upstreams(connection: Connection, pipeline_id: PipelineId) -> list[Upstream]:
    """What a pipeline runs after, in the order of names."""
    return [Upstream(**row) for row in fetch_all(connection, "list_upstreams", id=pipeline_id)]


def record_success(connection: Connection, pipeline_id: PipelineId) -> None:
    """Note the success of a pipeline for those that run after it."""
    execute(connection, "record_upstream_success", id=pipeline_id)


def fire_chains(connection: Connection, around: PipelineId | None = None) -> list[PipelineId]:
    """Request a run of every pipeline whose wave is complete, and which may start now; their ids.

    `around`: only this pipeline, and those that run after it. What cannot start, or is locked, keeps its wave.
    """
    return [PipelineId(row["id"]) for row in fetch_all(connection, "fire_chains", around=around, steps=STEPS)]
