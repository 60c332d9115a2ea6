"""P1, and S1 beside ingestr: the peers and the platform in turn, on one server reached by TCP."""

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from bench import latency, ours, ratings
from bench.duel import digest
from bench.increments import INCREMENTAL
from bench.measuring import Result, Samples, Verdict, seconds_of
from bench.peers import environments
from bench.peers.tools import PEERS, Ingestr, Job, Peer
from bench.stage import Stage
from vitrine import revisions
from vitrine.settings import child_environment

# what every peer keeps as it was; times differ in type, and some add columns of their own
_COMPARED = "id::text, user_id::text, film_id::text, score::int"


class Contestant(Protocol):
    """Somebody who loads the ratings and then follows their changes."""

    name: str
    table: str

    def clear(self) -> None:
        """Forget everything: the next load is a first one."""
        ...

    def load(self) -> None: ...

    def settle(self) -> None:
        """Have everything that is there, so that the next merge has only what changes from now on."""
        ...

    def merge(self, since: str) -> None: ...


class Vitrine:
    """The platform as a command, `vitrine run`, because the peers are commands too."""

    name = "vitrine"
    table = "analytics.ratings_p1"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._load = ours.create(
            stage.dst,
            stage.settings,
            name="load_p1",
            source_query=ratings.QUERY,
            target_table=self.table,
            key_columns=["id"],
        )

    def clear(self) -> None:
        ours.reset(self._stage.dst, self._stage.settings, self._load, self.table)

    def load(self) -> None:
        self._run(self._load.name)

    def settle(self) -> None:
        """The same mart, from now on by its changes."""
        revisions.change(self._stage.dst.connection, self._stage.settings, self._load.id, INCREMENTAL, state="reset")
        self.load()

    def merge(self, since: str) -> None:
        self.load()

    def _run(self, name: str) -> None:
        environment = child_environment(self._stage.dst.url) | {"VITRINE_SOURCES__CINEMA": self._stage.src.url}
        environments.run([sys.executable, "-m", "vitrine", "run", name], environment)


class Other:
    """A peer with a schema and a folder of its own."""

    def __init__(self, stage: Stage, peer: Peer) -> None:
        self.name = peer.name
        self.table = f"peer_{peer.name}.ratings"
        self._stage = stage
        self._peer = peer
        self._job = Job(
            stage.src.url, stage.dst.url, "ugc.ratings", self.table, environments.PEERS / "home" / peer.name
        )

    def clear(self) -> None:
        schema = self.table.partition(".")[0]
        self._stage.dst.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}")
        shutil.rmtree(self._job.home, ignore_errors=True)
        self._job.home.mkdir(parents=True)

    def load(self) -> None:
        self._peer.load(self._job)

    def settle(self) -> None:
        """Everything was loaded before; the first merge finds its place."""
        self.merge(ratings.newest(self._stage.src))

    def merge(self, since: str) -> None:
        self._peer.merge(self._job, since)


def compare(stage: Stage) -> list[Result]:
    """First load and changes by everybody; then a hundred changed rows by ingestr and by a warm runner."""
    contestants: list[Contestant] = [Vitrine(stage), *(Other(stage, kind()) for kind in PEERS)]
    count = stage.ratings // 20
    loads, wrong_loads = _take_turns(stage, contestants, lambda number: _first_load)
    for contestant in contestants:
        contestant.settle()
    merges, wrong_merges = _take_turns(stage, contestants, lambda number: _changes(stage, count, 400 + number))
    ingestr = [contestant for contestant in contestants if contestant.name == Ingestr.name]
    small, _ = _take_turns(stage, ingestr, lambda number: _changes(stage, latency.CHANGED, 500 + number))
    return [
        *_results(f"F1, {stage.ratings:,} ratings", "2 × ahead of the fastest", 0.5, loads, wrong_loads),
        *_results(f"I1, {count:,} of {stage.ratings:,}", "≤ 1.15 × the fastest", 1.15, merges, wrong_merges),
        latency.small_change(stage, peer=small[Ingestr.name]),
    ]


Turn = Callable[[Contestant], Callable[[], None]]
"""Prepares a contestant's turn, and gives what is measured."""


def _first_load(contestant: Contestant) -> Callable[[], None]:
    contestant.clear()
    return contestant.load


def _changes(stage: Stage, count: int, seed: int) -> Turn:
    since = ratings.change(stage.src, count, seed)
    return lambda contestant: lambda: contestant.merge(since)


def _take_turns(
    stage: Stage, contestants: Sequence[Contestant], prepare: Callable[[int], Turn]
) -> tuple[dict[str, Samples], set[str]]:
    """Seconds of each, and the names of those whose target does not equal the source."""
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    wrong: set[str] = set()
    for number in range(stage.rounds):
        turn = prepare(number)
        seen = digest(stage.src, f"SELECT {_COMPARED} FROM ugc.ratings")
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            work = turn(contestant)
            stage.calm()
            seconds[contestant.name].append(seconds_of(work))
            if digest(stage.dst, f"SELECT {_COMPARED} FROM {contestant.table}") != seen:
                wrong.add(contestant.name)
    return {name: Samples(tuple(taken)) for name, taken in seconds.items()}, wrong


def _results(workload: str, bar: str, at_most: float, taken: dict[str, Samples], wrong: set[str]) -> list[Result]:
    """A line for each peer; only a peer that is right can be the fastest."""
    mine = taken[Vitrine.name]
    others = {name: samples for name, samples in taken.items() if name != Vitrine.name}
    fastest = min((samples.median for name, samples in others.items() if name not in wrong), default=None)
    met = fastest is None or mine.median <= at_most * fastest
    verdict = Verdict.WRONG if Vitrine.name in wrong else Verdict.MET if met else Verdict.MISSED
    return [
        Result(
            row="P1",
            workload=f"{workload}: {name}",
            bar=bar,
            verdict=verdict if samples.median == fastest else Verdict.ASIDE,
            by_hand=samples,
            ours=mine,
            ratio=mine.median / samples.median,
            note="its target is WRONG" if name in wrong else f"beside {name}",
        )
        for name, samples in others.items()
    ]
