"""What pages about many pipelines show: figures, runners, lineage."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Literal, NamedTuple
from uuid import UUID

from vitrine import urls
from vitrine.core.status import Status
from vitrine.errors import VitrineError
from vitrine.operations.bodies.overview import (
    Graph,
    GroupCounts,
    HealthBody,
    LeaseBody,
    Node,
    RecentRunBody,
    RunnerBody,
    RunnersBody,
    SourceBody,
    State,
    StateCounts,
    Topology,
    Trouble,
    state_of,
)
from vitrine.operations.context import Context, Role, allowed
from vitrine.settings import CONNECTIONS_OF_A_RUN, Settings
from vitrine.sql import parse
from vitrine.store import lists
from vitrine.store.lists import Ends, Reading, SourceCount, Sparkline, Unusual

MAX_COUNT = 1000
"""Larger numbers are shown as `1000+`."""

RECENT_RUNS = 30


@allowed(Role.VIEWER)
def counts(context: Context) -> StateCounts:
    with context.connection() as connection:
        return StateCounts(**lists.count_states(connection, context.settings.zone))


@allowed(Role.VIEWER)
def groups(context: Context, by: Literal["owner", "tag"]) -> list[GroupCounts]:
    """The owners or tags in the order of their names, at most 200, with the states of their pipelines."""
    with context.connection() as connection:
        return [GroupCounts(**one) for one in lists.count_groups(connection, context.settings.zone, by)]


@allowed(Role.VIEWER)
def recent_runs(context: Context, ids: Sequence[UUID], *, limit: int = RECENT_RUNS) -> dict[UUID, list[RecentRunBody]]:
    """The newest runs of each of these pipelines, oldest first."""
    with context.connection() as connection:
        found = lists.list_recent_runs(connection, ids, limit=limit)
    return {one: [RecentRunBody.of(run) for run in runs] for one, runs in found.items()}


@allowed(Role.VIEWER)
def sparklines(context: Context, ids: Sequence[UUID], *, limit: int = RECENT_RUNS) -> dict[UUID, Sparkline]:
    """The newest runs of each of these pipelines in short: what a row of a table shows of them."""
    with context.connection() as connection:
        return lists.list_sparklines(connection, ids, limit=limit)


@allowed(Role.VIEWER)
def health(context: Context) -> HealthBody:
    """Runners, queue, active runs and the oldest transaction that a checkpoint waits for."""
    with context.connection() as connection:
        return HealthBody.of(lists.get_health(connection, limit=MAX_COUNT + 1))


MAX_RUNNERS = 200
MAX_LEASES = 500
MAX_COUNTED = 100_000
"""So many pipelines that run or wait are counted at most."""


@allowed(Role.VIEWER)
def read_runners(context: Context) -> RunnersBody:
    """The runners seen last, the longest runs, and every source."""
    with context.connection() as connection:
        found = lists.list_runners(connection, limit=MAX_RUNNERS + 1)
        leases = lists.list_leases(connection, limit=MAX_LEASES + 1)
        counts = lists.count_sources(connection, limit=MAX_COUNTED)
    return RunnersBody(
        runners=[RunnerBody.of(one) for one in found[:MAX_RUNNERS]],
        leases=[LeaseBody.of(one) for one in leases[:MAX_LEASES]],
        sources=_sources(context.settings, counts),
        is_cut=len(found) > MAX_RUNNERS or len(leases) > MAX_LEASES,
    )


def _sources(settings: Settings, counts: list[SourceCount]) -> list[SourceBody]:
    busy = {one.name: one for one in counts}
    configured = {"default", *(name.lower() for name in settings.sources)}
    limits = {name.lower(): limit for name, limit in settings.source_connections.items()}
    return [
        _source(name, busy.get(name), limits.get(name), name in configured) for name in sorted({*configured, *busy})
    ]


def _source(name: str, count: SourceCount | None, limit: int | None, is_configured: bool) -> SourceBody:
    running, waiting = (count.running, count.waiting) if count else (0, 0)
    return SourceBody(
        name=name,
        running=running,
        waiting=waiting,
        connections=running * CONNECTIONS_OF_A_RUN,
        max_connections=limit,
        is_configured=is_configured,
    )


MAX_PIPELINES = 20_000
MAX_REMEMBERED = 2 * MAX_PIPELINES
PARSE_SECONDS = 1.0
"""One call parses for so long; a later call continues. A query takes about 2 ms."""

READ_AT_ONCE = 200
"""Queries that are fetched together; each has at most 64 KB."""

_DATABASE = ("host", "hostaddr", "port", "dbname", "service")

Version = tuple[UUID, datetime, int]


class Reads(NamedTuple):
    """What a version of a pipeline reads."""

    relations: frozenset[tuple[str, str]] = frozenset()
    reader: str | None = None


class Kept(NamedTuple):
    """The graph of the last call, and what its topology was made from."""

    version: object  # of all definitions
    places: Mapping[str, str]  # of their sources
    graph: Graph


class Memory:
    """What versions of pipelines read; a version never changes, so that an answer stays right."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self.kept: Kept | None = None  # one graph, of at most 20 000 pipelines
        self._known: OrderedDict[Version, Reads] = OrderedDict()
        self._limit = limit
        self._lock = Lock()

    def get(self, version: Version) -> Reads | None:
        return self._known.get(version)

    def add(self, version: Version, reads: Reads) -> None:
        with self._lock:
            self._known[version] = reads
            while len(self._known) > self._limit:
                self._known.popitem(last=False)


_memory = Memory()


@allowed(Role.VIEWER)
def read_lineage(context: Context, *, memory: Memory = _memory, now: Callable[[], float] = time.monotonic) -> Graph:
    """Every pipeline with what it reads and writes, of at most 20 000 pipelines.

    While no definition changes, a call reads states only, and returns the same graph if these are the same. Queries
    that no call has parsed yet are parsed for a second; `unread` says how many are left for the next call.
    """
    with context.connection() as connection:
        version = lists.get_lineage_version(connection, limit=MAX_PIPELINES + 1)
        unusual = lists.list_unusual(connection, context.settings.zone, limit=MAX_PIPELINES)
    places = _Places(context.settings)
    kept = memory.kept
    if kept is not None and _is_current(kept, version, places):
        topology, known = kept.graph.topology, kept.places
    else:
        # a change after the version was read is found by the next call
        kept, topology, known = None, _topology(context, memory, places, now), places.known
    ids = {_pipeline_id(one.name): one for one in unusual}
    states = {id: _state(one) for id, one in ids.items() if id in topology.nodes}
    if kept is not None and kept.graph.states == states:
        return kept.graph
    found = Graph.of(topology, states)
    memory.kept = Kept(version, known, found)
    return found


def _is_current(kept: Kept, version: object, places: "_Places") -> bool:
    is_whole = not kept.graph.topology.unread
    return is_whole and kept.version == version and all(places.of(one) == place for one, place in kept.places.items())


def _topology(context: Context, memory: Memory, places: "_Places", now: Callable[[], float]) -> Topology:
    with context.connection() as connection:
        found = lists.list_ends(connection, limit=MAX_PIPELINES + 1)
    pipelines = found[:MAX_PIPELINES]
    _learn(context, pipelines, memory, now)
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    unread = 0
    for one in pipelines:
        reads = memory.get(_version(one))
        unread += reads is None
        pipeline = _pipeline_id(one.name)
        nodes[pipeline] = Node(pipeline, "pipeline", one.name, enabled=one.enabled)
        edges.append((pipeline, _table(nodes, "", one.target_table)))
        edges += [(id, pipeline) for id in _inputs(nodes, one, reads or Reads(), places)]
    return Topology.of(nodes, edges, unread=unread, is_cut=len(found) > len(pipelines))


def _learn(context: Context, pipelines: Sequence[Ends], memory: Memory, now: Callable[[], float]) -> None:
    """Parse what is new until the time is over; no connection is held meanwhile."""
    unknown = [one for one in pipelines if memory.get(_version(one)) is None]
    deadline = now() + PARSE_SECONDS
    for start in range(0, len(unknown), READ_AT_ONCE):
        if now() > deadline:
            return
        created = {one.id: one.created_at for one in unknown[start : start + READ_AT_ONCE]}
        with context.connection() as connection:
            readings = lists.list_readings(connection, list(created))
        for reading in readings:
            if now() > deadline:
                return
            memory.add((reading.id, created[reading.id], reading.config_version), _reads(reading))


def _reads(reading: Reading) -> Reads:
    try:
        relations = parse.relations_of(reading.query) if reading.query else frozenset[tuple[str, str]]()
    except VitrineError:
        relations = frozenset[tuple[str, str]]()  # written to the table without validation: nothing runs it
    return Reads(relations, reading.reader)


def _version(one: Ends) -> Version:
    # another store may have a pipeline of the same id
    return (one.id, one.created_at, one.config_version)


class _Places:
    """Which sources are the store's own database: their tables can be marts of other pipelines."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.known: dict[str, str] = {}  # those that were asked for

    def of(self, source: str) -> str:
        if source not in self.known:
            self.known[source] = "" if self._is_store(source) else source
        return self.known[source]

    def _is_store(self, source: str) -> bool:
        try:
            return _database(self._settings.source_url(source)) == _database(self._settings.store_url)
        except (VitrineError, urls.UrlError):
            return False  # no such source is configured


def _database(url: str) -> dict[str, str]:
    """What the URL says about server and database: a source has an account of its own."""
    keywords = urls.parse_postgres(url).keywords()
    return {name: keywords[name] for name in _DATABASE if name in keywords}


def _pipeline_id(name: str) -> str:
    return f"pipeline:{name}"


def _state(one: Unusual) -> State:
    trouble: Trouble | None = "failed" if one.enabled and one.status is Status.FAILED else None
    if trouble is None and one.stale:
        trouble = "late"
    return state_of(one.status, trouble)


def _inputs(nodes: dict[str, Node], one: Ends, reads: Reads, places: _Places) -> Iterator[str]:
    place = places.of(one.source) if reads.relations else ""
    for schema, table in reads.relations:
        yield _table(nodes, place, f"{schema}.{table}")
    if reads.reader is not None:
        id = f"reader:{reads.reader}"
        nodes[id] = Node(id, "reader", reads.reader)
        yield id


def _table(nodes: dict[str, Node], place: str, name: str) -> str:
    """The id of the table, with its node among those that are known."""
    id = f"table:{place}/{name}"
    if id not in nodes:  # many pipelines read the same tables
        nodes[id] = Node(id, "table", name, place)
    return id
