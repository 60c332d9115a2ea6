"""Measure a row with both trees on one server."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench import ratings, server
from bench.comparison.interval import Interval, Outcome, interval_of_median, judge, paired_ratios
from bench.comparison.rounds import NEW, OLD, measure_in_rounds
from bench.comparison.rows import Row
from bench.database import opened
from bench.measuring import Samples, reason_of
from bench.server import Server
from bench.tree import Installation, Measurement, Tree

SOURCE = "source"


@dataclass(frozen=True)
class Side:
    """The measurements of one tree."""

    measurements: tuple[Measurement, ...]
    note: str = ""

    @property
    def seconds(self) -> Samples:
        return Samples(tuple(one.seconds for one in self.measurements))

    @property
    def peak_mb(self) -> float | None:
        return max((one.peak_mb for one in self.measurements if one.peak_mb is not None), default=None)


@dataclass(frozen=True)
class Comparison:
    """One row of the result."""

    row: str
    workload: str
    outcome: Outcome
    old: Side | None = None  # None, as all that follows: the row is BROKEN
    new: Side | None = None
    ratio: float | None = None
    interval: Interval | None = None
    reason: str = ""


class Comparer:
    """Both trees with their databases; every measurement starts from a copy of a prepared database."""

    def __init__(self, running: Server, trees: Sequence[Tree]) -> None:
        self.server = running
        self._installations = {
            tree.name: Installation(tree, running.url(_work(tree.name)), running.url(SOURCE)) for tree in trees
        }

    def migrate(self) -> None:
        """Create a store for each tree, with its own migrations."""
        for name, installation in self._installations.items():
            self.server.recreate(_work(name))
            installation.migrate()
            self.server.recreate(_migrated(name), _work(name))

    def compare(self, row: Row, rounds: int) -> Comparison:
        try:
            return self._compare(row, rounds)
        except Exception as exc:  # noqa: BLE001  whatever it is, it concerns this row only
            return Comparison(row.name, row.workload, Outcome.BROKEN, reason=reason_of(exc))

    def _compare(self, row: Row, rounds: int) -> Comparison:
        self.server.recreate(SOURCE)
        right = True
        with opened(self.server.url(SOURCE)) as source:
            ratings.create_warm_up(source)
            row.create_source(source)
            for name in self._installations:
                self._prepare(row, name)
            row.change_source(source)
            expected = row.expected(source)

        def measure(name: str) -> Measurement:
            nonlocal right
            self.server.recreate(_work(name), _ready(name))
            measured = row.measure(self._installations[name], self.server.checkpoint)
            with opened(self.server.url(_work(name))) as store:
                right &= row.found(store) == expected
            return measured

        measured = measure_in_rounds(rounds, measure)
        old, new = (Side(tuple(measured[name]), row.note(measured[name])) for name in (OLD, NEW))
        ratios = paired_ratios(old.seconds.seconds, new.seconds.seconds)
        interval = interval_of_median(ratios)
        outcome = judge(interval, right=right)
        return Comparison(row.name, row.workload, outcome, old, new, Samples(tuple(ratios)).median, interval)

    def _prepare(self, row: Row, name: str) -> None:
        self.server.recreate(_work(name), _migrated(name))
        row.prepare(self._installations[name])
        with opened(self.server.url(_work(name))) as store:
            store.execute("VACUUM ANALYZE")
        self.server.recreate(_ready(name), _work(name))

    def clean(self) -> None:
        """Drop all databases: they are of no use to another comparison."""
        for name in self._installations:
            for database in (_work(name), _ready(name), _migrated(name)):
                self.server.drop(database)
        self.server.drop(SOURCE)


@contextmanager
def prepared(old: Tree, new: Tree) -> Generator[Comparer]:
    """A server with a store for each tree; the server is stopped at the end."""
    with server.running("comparison") as running:
        comparer = Comparer(running, (old, new))
        try:
            comparer.migrate()
            yield comparer
        finally:
            comparer.clean()


def _work(name: str) -> str:
    return f"work_{name}"


def _ready(name: str) -> str:
    return f"ready_{name}"


def _migrated(name: str) -> str:
    return f"migrated_{name}"
