"""The rows of the comparison: what each prepares, measures and checks."""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import catalogue, ratings, shelves
from bench.database import Database, opened
from bench.increments import INCREMENTAL
from bench.measuring import seconds_of
from bench.memory import peak_mb
from bench.run_requests import finished_since, newest_run, request, wait_until_idle
from bench.tree import Definition, Installation, Measurement

Change = Callable[[Database], object]

STARTS = 3
"""Processes of one measurement of S1: a single start is too short to be measured well."""


@dataclass(frozen=True)
class Row(ABC):
    """A workload that both trees do from the same state, with the same data."""

    name: str
    workload: str

    @abstractmethod
    def create_source(self, source: Database) -> None: ...

    @abstractmethod
    def prepare(self, vitrine: Installation) -> None:
        """Create the pipelines and load what must be loaded; every measurement starts from a copy of the result."""

    @abstractmethod
    def change_source(self, source: Database) -> None:
        """Change the data that was loaded."""

    @abstractmethod
    def measure(self, vitrine: Installation, checkpoint: Callable[[], None]) -> Measurement: ...

    @abstractmethod
    def expected(self, source: Database) -> Any:
        """What `found` must return after a measurement."""

    @abstractmethod
    def found(self, store: Database) -> Any: ...

    def note(self, measurements: Sequence[Measurement]) -> str:
        """Further figures of one tree."""
        return ""


@dataclass(frozen=True)
class RunRow(Row):
    """One run of one pipeline, without the start of the interpreter."""

    create: Change
    definition: Definition
    columns: str  # of the mart
    expected_query: str
    change: Change | None = None  # None: the measured run is the first load

    def create_source(self, source: Database) -> None:
        self.create(source)

    def prepare(self, vitrine: Installation) -> None:
        vitrine.apply_timed(self.definition)
        if self.change is not None:
            vitrine.timed_run(self.definition["name"])

    def change_source(self, source: Database) -> None:
        if self.change is not None:
            self.change(source)

    def measure(self, vitrine: Installation, checkpoint: Callable[[], None]) -> Measurement:
        return vitrine.timed_run(self.definition["name"], before=checkpoint)

    def expected(self, source: Database) -> tuple[int, int]:
        return source.digest(self.expected_query)

    def found(self, store: Database) -> tuple[int, int]:
        return store.digest(f"SELECT {self.columns} FROM {self.definition['target_table']}")


@dataclass(frozen=True)
class StartRow(RunRow):
    """`vitrine run` as a process; the seconds are the mean of several processes."""

    def measure(self, vitrine: Installation, checkpoint: Callable[[], None]) -> Measurement:
        checkpoint()
        runs = [seconds_of(lambda: vitrine.command("run", self.definition["name"])) for _ in range(STARTS)]
        return Measurement(statistics.mean(runs))


@dataclass(frozen=True)
class ThroughputRow(Row):
    """Many small pipelines and one runner; the seconds are those from the first claim to the end of the last run."""

    count: int

    @property
    def names(self) -> list[str]:
        return shelves.names(self.count)

    def create_source(self, source: Database) -> None:
        shelves.create(source, self.count)

    def prepare(self, vitrine: Installation) -> None:
        vitrine.apply(*shelves.definitions(self.count))
        self._run(vitrine, rows_read=shelves.ROWS)

    def change_source(self, source: Database) -> None:
        shelves.change(source, self.count)

    def measure(self, vitrine: Installation, checkpoint: Callable[[], None]) -> Measurement:
        checkpoint()
        return self._run(vitrine, rows_read=shelves.CHANGED)

    def expected(self, source: Database) -> list[tuple[int, int]]:
        return [source.digest(shelves.query(number)) for number in range(self.count)]

    def found(self, store: Database) -> list[tuple[int, int]]:
        return [store.digest(f"SELECT {shelves.COLUMNS} FROM analytics.{name}") for name in self.names]

    def note(self, measurements: Sequence[Measurement]) -> str:
        return f"{self.count / statistics.median(one.seconds for one in measurements):.1f} claims/s"

    def _run(self, vitrine: Installation, *, rows_read: int) -> Measurement:
        with opened(vitrine.store_url) as store:
            last = newest_run(store)
            # requested before the runner starts: the clock of the store then leaves out the start of its interpreter
            request(store, self.names)
            with vitrine.service("runner") as runner:
                wait_until_idle(store, self.names)
                peak = peak_mb(runner.pid)
            return Measurement(finished_since(store, last, expected=self.count, rows_read=rows_read).elapsed, peak)


def rows(scale: float) -> list[Row]:
    """All rows; at scale 1 a measurement takes one to three seconds on two cores, except S1."""

    def sized(count: int) -> int:
        return max(100, round(count * scale))

    films = sized(80_000)
    return [
        _load("F1", "first full load, {} ratings", sized(1_000_000)),
        _full_refresh(sized(400_000)),
        _changes(sized(1_200_000)),
        _first_incremental_load(sized(800_000)),
        _aggregate(sized(1_000_000)),
        _films(
            "M1", f"film_dim, {films:,} films, a tenth changed", films, lambda db: catalogue.retitle(db, films // 10)
        ),
        _films("M2", f"film_dim, {films:,} films, nothing changed", films, lambda db: None),
        _load("T1", "first full load, {} ratings, row transform", sized(200_000), "bench_raise_score"),
        _load("T2", "first full load, {} ratings, frame transform", sized(500_000), "bench_raise_score_frame"),
        _start(),
        _throughput(max(8, round(60 * scale))),
    ]


def _definition(name: str, source_query: str, **fields: Any) -> Definition:
    row = name.lower()
    return {"name": row, "source_query": source_query, "target_table": f"analytics.{row}", **fields}


def _create_ratings(count: int) -> Change:
    return lambda source: ratings.create(source, count)


def _load(name: str, workload: str, count: int, task: str | None = None) -> Row:
    fields = {"python_task": task} if task else {}
    return RunRow(
        name=name,
        workload=workload.format(f"{count:,}"),
        create=_create_ratings(count),
        definition=_definition(name, ratings.query(), key_columns=["id"], **fields),
        columns=ratings.COLUMNS,
        expected_query=ratings.raised_query() if task else ratings.query(),
    )


def _full_refresh(count: int) -> Row:
    def change(source: Database) -> None:
        ratings.change(source, count // 100, seed=1)
        ratings.delete(source, count // 1000, seed=2)

    return RunRow(
        name="F2",
        workload=f"full refresh, {count:,} ratings, 1 % changed, 0.1 % deleted",
        create=_create_ratings(count),
        definition=_definition("F2", ratings.query(), key_columns=["id"]),
        columns=ratings.COLUMNS,
        expected_query=ratings.query(),
        change=change,
    )


def _changes(count: int) -> Row:
    return RunRow(
        name="I1",
        workload=f"increment, {count // 10:,} changed of {count:,} ratings",
        create=_create_ratings(count),
        definition=_definition("I1", ratings.query(), **INCREMENTAL),
        columns=ratings.COLUMNS,
        expected_query=ratings.query(),
        change=lambda source: ratings.change(source, count // 10, seed=1),
    )


def _first_incremental_load(count: int) -> Row:
    return RunRow(
        name="I2",
        workload=f"first load of an incremental pipeline, {count:,} ratings",
        create=_create_ratings(count),
        definition=_definition("I2", ratings.query(), **INCREMENTAL),
        columns=ratings.COLUMNS,
        expected_query=ratings.query(),
    )


def _aggregate(count: int) -> Row:
    cursor = {"incremental_key": "modified", "incremental_id_key": "film_id", "key_columns": ["film_id"]}
    return RunRow(
        name="A1",
        workload=f"aggregate increment ($1), {count // 10:,} new of {count:,} ratings",
        create=_create_ratings(count),
        definition=_definition("A1", ratings.aggregate(ratings.films_rated(">= $1")), mode="incremental", **cursor),
        columns="film_id, avg_rating, rating_count, modified",
        expected_query=ratings.aggregate(),
        change=lambda source: ratings.add(source, count // 10, seed=1),
    )


def _films(name: str, workload: str, films: int, change: Change) -> Row:
    return RunRow(
        name=name,
        workload=workload,
        create=lambda source: catalogue.create(source, films),
        definition=_definition(name, catalogue.FILM_DIM, key_columns=["film_id"]),
        columns=catalogue.FILM_COLUMNS,
        expected_query=catalogue.FILM_DIM,
        change=change,
    )


def _start() -> Row:
    return StartRow(
        name="S1",
        workload="`vitrine run` of 100 rows as a process",
        create=_create_ratings(100),
        definition=_definition("S1", ratings.query(), key_columns=["id"]),
        columns=ratings.COLUMNS,
        expected_query=ratings.query(),
        change=lambda source: None,
    )


def _throughput(count: int) -> Row:
    return ThroughputRow(
        name="R2",
        workload=f"{count} pipelines of {shelves.CHANGED} changed rows each, one runner",
        count=count,
    )
