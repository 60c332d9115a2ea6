"""E1: films as documents of a search index, beside posting the same bodies, already serialised; then E2."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from bench import search_differences
from bench.catalogue import FILM_COLUMNS, FILM_DIM
from bench.cluster import Cluster
from bench.measuring import Result, Samples, judge, seconds_of, turns
from bench.processor import ended_children_seconds, own_seconds
from bench.ratings import SCHEMA
from bench.setup import Setup
from bench.tree import Definition, Installation, Measurement
from vitrine.connectors.elasticsearch import ElasticsearchOptions
from vitrine.connectors.elasticsearch.bulk import Action, Limits, Operations, cut
from vitrine.connectors.elasticsearch.documents import DocumentEncoder
from vitrine.core.rows import START, Batch, Column, TextRows
from vitrine.postgres import TEXT_FORMAT
from vitrine_devserver import DevServer

AT_MOST, AT_MOST_MB = 1.35, 200
KEY, NAME, BARE = "film_id", "bench_films", "bench_films_bare"
TABLE = f"{SCHEMA}.film_documents"
QUERY = f"SELECT {FILM_COLUMNS} FROM {TABLE}"
BATCH_ROWS = 20_000
OPTIONS = ElasticsearchOptions()
LIMITS = Limits(OPTIONS.bulk_documents, OPTIONS.bulk_bytes, OPTIONS.bulk_in_flight, compress=False)

DEFINITION: Definition = {
    "name": "films_e1",
    "source_query": QUERY,
    "target_table": f"es:{NAME}",
    "key_columns": [KEY],
}


def documents(setup: Setup) -> list[Result]:
    """One row per film is stored before: the query that gathers it costs as much as the documents (M1)."""
    setup.mart.execute(f"DROP TABLE IF EXISTS {TABLE}; CREATE TABLE {TABLE} AS {FILM_DIM}")
    setup.mart.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY ({KEY})", f"VACUUM ANALYZE {TABLE}")
    with DevServer.start() as server:
        vitrine = replace(setup.inside, settings={"VITRINE_ELASTICSEARCH_URL": server.url})
        cluster = Cluster(server.url)
        loaded = _measure(setup, vitrine, cluster, _Meter(setup, server))
        damaged = search_differences.damaged_documents(
            setup, vitrine, cluster, name="films_e1", alias=NAME, query=QUERY
        )
        return [loaded, damaged]


@dataclass(frozen=True)
class _Processor:
    """Processor time of one round."""

    client: float
    cluster: float
    postgres: float

    @property
    def total(self) -> float:
        return self.client + self.cluster + self.postgres


@dataclass
class _Rounds:
    """What was measured of one side."""

    seconds: list[float] = field(default_factory=list[float])
    processor: list[_Processor] = field(default_factory=list[_Processor])

    def add(self, seconds: float, processor: _Processor) -> None:
        self.seconds.append(seconds)
        self.processor.append(processor)

    @property
    def samples(self) -> Samples:
        return Samples(tuple(self.seconds))


class _Meter:
    """Processor time of both servers, since the last start."""

    def __init__(self, setup: Setup, server: DevServer) -> None:
        self._postgres = setup.server.process
        self._cluster = server.pid or 0
        self._began = (0.0, 0.0)

    def start(self) -> None:
        self._began = self._now()

    def with_client(self, client: float) -> _Processor:
        cluster, postgres = (now - before for now, before in zip(self._now(), self._began, strict=True))
        return _Processor(client, cluster, postgres)

    def _now(self) -> tuple[float, float]:
        return own_seconds(self._cluster), ended_children_seconds(self._postgres)


def _measure(setup: Setup, vitrine: Installation, cluster: Cluster, meter: _Meter) -> Result:
    bodies = list(_bodies(setup))
    ours, bare = _Rounds(), _Rounds()
    peak, right = 0.0, True
    _load(vitrine, cluster, meter)  # also shows the mappings, and warms the server up
    definition = cluster.definition(NAME)
    for _, bare_first in turns(setup.rounds):
        for is_bare in (True, False) if bare_first else (False, True):
            if is_bare:
                cluster.remove(BARE)
                meter.start()
                began = time.process_time()
                seconds = seconds_of(lambda: _post(cluster, definition, bodies))
                bare.add(seconds, meter.with_client(time.process_time() - began))
            else:
                measured = _load(vitrine, cluster, meter)
                ours.add(measured.seconds, meter.with_client(measured.processor_seconds or 0))
                peak = max(peak, measured.peak_mb or 0)
        right = right and cluster.digest(NAME) == cluster.digest(BARE)
    # the median of the rounds' ratios: the load of the machine changes from round to round
    ratio = median(one / other for one, other in zip(ours.seconds, bare.seconds, strict=True))
    processor = median(one.total / other.total for one, other in zip(ours.processor, bare.processor, strict=True))
    return Result(
        row="E1",
        workload=f"{setup.films:,} film documents, first load; by hand: the same bodies, serialised before",
        bar=f"≤ {AT_MOST:g}, < {AT_MOST_MB} MB",
        verdict=judge(ratio <= AT_MOST and peak < AT_MOST_MB, right=right),
        by_hand=bare.samples,
        ours=ours.samples,
        ratio=ratio,
        note=f"{peak:.0f} MB; processor time {processor:.2f}",
        facts={
            "peak_mb": peak,
            "megabytes": sum(map(len, bodies)) / 1e6,
            "processor": {
                "ratio": processor,
                "ours": [asdict(one) for one in ours.processor],
                "by_hand": [asdict(one) for one in bare.processor],
            },
        },
    )


def _load(vitrine: Installation, cluster: Cluster, meter: _Meter) -> Measurement:
    cluster.remove(NAME)
    vitrine.apply_timed(DEFINITION, reset=True)
    return vitrine.timed_run("films_e1", before=meter.start)


def _bodies(setup: Setup) -> Iterator[bytes]:
    """The requests that a load sends, without compression."""
    encoder = DocumentEncoder([KEY], nulls="omit", cursor=None, last_wins=False)
    columns, rows = _rows(setup)
    for first in range(0, len(rows), BATCH_ROWS):
        some = rows[first : first + BATCH_ROWS]
        batch = Batch(TextRows(b"".join(some), len(some)), columns, None, START)
        documents = encoder.encode(batch)
        operations = Operations(Action.INDEX, documents.ids, documents.sources, 1)
        yield from (request.body() for request in cut(operations, LIMITS))


def _rows(setup: Setup) -> tuple[tuple[Column, ...], list[bytes]]:
    connection = setup.mart.connection
    described = connection.execute(f"{QUERY} LIMIT 0").description or ()
    types = connection.execute(
        "SELECT format_type(oid, -1) AS type FROM unnest(%s::oid[]) WITH ORDINALITY AS t(oid, place) ORDER BY place",
        [[column.type_code for column in described]],
    ).fetchall()
    columns = tuple(Column(one.name, str(row["type"])) for one, row in zip(described, types, strict=True))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(TEXT_FORMAT)
        with cursor.copy(f"COPY ({QUERY} ORDER BY {KEY}) TO STDOUT") as copy:
            return columns, b"".join(bytes(part) for part in copy).splitlines(keepends=True)


def _post(cluster: Cluster, definition: dict[str, Any], bodies: Sequence[bytes]) -> None:
    """As many requests in flight as a load has, then one refresh."""
    cluster.ask("PUT", f"/{BARE}", definition)
    rest = iter(bodies)

    def post() -> None:
        connection = cluster.connection()
        for body in rest:
            connection.request("POST", f"/{BARE}/_bulk", body, {"Content-Type": "application/x-ndjson"})
            reply = json.loads(connection.getresponse().read())
            if reply["errors"]:
                raise RuntimeError("the cluster refused a document")
        connection.close()

    with ThreadPoolExecutor(LIMITS.in_flight) as threads:
        for ended in [threads.submit(post) for _ in range(LIMITS.in_flight)]:
            ended.result()
    cluster.ask("POST", f"/{BARE}/_refresh")
