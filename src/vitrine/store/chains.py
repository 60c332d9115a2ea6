"""Chains: which pipelines a pipeline runs after, and the waves that start it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from vitrine.errors import ConfigError, TransitionRefused
from vitrine.ids import PipelineId
from vitrine.postgres import Connection
from vitrine.status import STEPS
from vitrine.store.database import execute, fetch_all, fetch_one


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


def lock(connection: Connection) -> None:
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


def fire(connection: Connection, around: PipelineId | None = None) -> list[PipelineId]:
    """Request a run of every pipeline whose wave is complete, and which may start now; their ids.

    `around`: only this pipeline, and those that run after it. What cannot start, or is locked, keeps its wave.
    """
    return [PipelineId(row["id"]) for row in fetch_all(connection, "fire_chains", around=around, steps=STEPS)]
