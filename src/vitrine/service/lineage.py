"""Lineage: which tables each pipeline reads, from its parsed query, and what it writes."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from vitrine import policy, urls
from vitrine.errors import VitrineError
from vitrine.service.bodies.lineage import Graph, Node, State, Topology, Trouble, state_of
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import lineage
from vitrine.store.lineage import Ends, Reading, Unusual

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
def graph(context: Context, *, memory: Memory = _memory, now: Callable[[], float] = time.monotonic) -> Graph:
    """Every pipeline with what it reads and writes, of at most 20 000 pipelines.

    While no definition changes, a call reads states only, and returns the same graph if these are the same. Queries
    that no call has parsed yet are parsed for a second; `unread` says how many are left for the next call.
    """
    with context.connection() as connection:
        version = lineage.get_version(connection, limit=MAX_PIPELINES + 1)
        unusual = lineage.list_unusual(connection, context.settings.zone, limit=MAX_PIPELINES)
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
        found = lineage.list_ends(connection, limit=MAX_PIPELINES + 1)
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
            readings = lineage.list_readings(connection, list(created))
        for reading in readings:
            if now() > deadline:
                return
            memory.add((reading.id, created[reading.id], reading.config_version), _reads(reading))


def _reads(reading: Reading) -> Reads:
    try:
        relations = policy.relations_of(reading.query) if reading.query else frozenset[tuple[str, str]]()
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
