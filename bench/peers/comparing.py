"""P1, and S1 beside ingestr: the peers and Vitrine in turns, on one server reached by TCP."""

import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Protocol

from bench import latency, measuring, ratings
from bench.increments import INCREMENTAL
from bench.measuring import Result, Samples, Verdict, judge, seconds_of, turns
from bench.peers import environments
from bench.peers.tools import PEERS, Ingestr, Job, Peer
from bench.setup import Setup
from bench.tree import Definition

# the columns that every peer keeps as they are; times differ in type, and some peers add columns
_COMPARED = "id::text, user_id::text, film_id::text, score::int"


class Tool(Protocol):
    """A tool that loads the ratings and then follows their changes."""

    name: str
    table: str

    def clear(self) -> None:
        """Remove target and state: the next load is a first one."""
        ...

    def load(self) -> None: ...

    def settle(self) -> None:
        """Load everything that exists, so that the next merge has only later changes."""
        ...

    def merge(self, since: str) -> None: ...


class Vitrine:
    """Vitrine as the command `vitrine run`, because the peers are commands too."""

    name = "vitrine"
    table = "analytics.ratings_p1"
    definition: ClassVar[Definition] = {
        "name": "load_p1",
        "source_query": ratings.query(),
        "target_table": table,
        "key_columns": ["id"],
    }

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def clear(self) -> None:
        self._setup.reset(self._setup.between, self.definition)

    def load(self) -> None:
        self._setup.between.command("run", self.definition["name"])

    def settle(self) -> None:
        """Load the same mart incrementally from now on."""
        self._setup.between.apply({**self.definition, **INCREMENTAL}, reset=True)
        self.load()

    def merge(self, since: str) -> None:
        self.load()


class Other:
    """A peer with a schema and a folder of its own."""

    def __init__(self, setup: Setup, peer: Peer) -> None:
        self.name = peer.name
        self.table = f"peer_{peer.name}.ratings"
        self._setup = setup
        self._peer = peer
        self._job = Job(
            setup.src.url, setup.dst.url, ratings.TABLE, self.table, environments.PEERS / "home" / peer.name
        )

    def clear(self) -> None:
        schema = self.table.partition(".")[0]
        self._setup.dst.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}")
        shutil.rmtree(self._job.home, ignore_errors=True)
        self._job.home.mkdir(parents=True)

    def load(self) -> None:
        self._peer.load(self._job)

    def settle(self) -> None:
        """Everything is loaded; the first merge makes the peer remember its position."""
        self.merge(ratings.newest(self._setup.src))

    def merge(self, since: str) -> None:
        self._peer.merge(self._job, since)


def compare(setup: Setup) -> list[Result]:
    """First load and changes by every tool; then a hundred changed rows by ingestr and by a warm runner."""
    broken: dict[str, Exception] = {}
    tools: list[Tool] = [Vitrine(setup)]
    for kind in PEERS:
        with _excluding(kind.name, broken):
            tools.append(Other(setup, kind()))
    count = setup.ratings // 20
    loads, wrong_loads = _take_turns(setup, tools, lambda number: _first_load, broken)
    for tool in [one for one in tools if one.name not in broken]:
        with _excluding(tool.name, broken):
            tool.settle()
    merges, wrong_merges = _take_turns(setup, tools, lambda number: _changes(setup, count, 400 + number), broken)
    ingestr = [tool for tool in tools if tool.name == Ingestr.name]
    small, _ = _take_turns(setup, ingestr, lambda number: _changes(setup, latency.CHANGED, 500 + number), broken)
    return [
        *(measuring.broken("P1", name, error) for name, error in broken.items()),
        *_results(f"F1, {setup.ratings:,} ratings", "2 × ahead of the fastest", 0.5, loads, wrong_loads),
        *_results(f"I1, {count:,} of {setup.ratings:,}", "≤ 1.15 × the fastest", 1.15, merges, wrong_merges),
        latency.small_change(setup, peer=small.get(Ingestr.name)),
    ]


Turn = Callable[[Tool], Callable[[], None]]
"""Prepares the turn of a tool and returns the work to measure."""


def _first_load(tool: Tool) -> Callable[[], None]:
    tool.clear()
    return tool.load


def _changes(setup: Setup, count: int, seed: int) -> Turn:
    since = ratings.change(setup.src, count, seed)
    return lambda tool: lambda: tool.merge(since)


@contextmanager
def _excluding(name: str, broken: dict[str, Exception]) -> Generator[None]:
    """A peer that fails is `broken` and takes no further turn; the others are measured without it."""
    if name == Vitrine.name:
        yield
        return
    try:
        yield
    except Exception as exc:  # noqa: BLE001  whatever it is, it concerns this peer only
        broken[name] = exc


def _take_turns(
    setup: Setup, tools: Sequence[Tool], prepare: Callable[[int], Turn], broken: dict[str, Exception]
) -> tuple[dict[str, Samples], set[str]]:
    """The seconds of each tool that works, and the names of those whose target does not equal the source."""
    seconds: dict[str, list[float]] = {tool.name: [] for tool in tools}
    wrong: set[str] = set()
    for number, in_order in turns(setup.rounds):
        turn = prepare(number)
        expected = setup.src.digest(f"SELECT {_COMPARED} FROM {ratings.TABLE}")
        for tool in tools if in_order else reversed(tools):
            if tool.name in broken:
                continue
            with _excluding(tool.name, broken):
                work = turn(tool)
                setup.checkpoint()
                seconds[tool.name].append(seconds_of(work))
                if setup.dst.digest(f"SELECT {_COMPARED} FROM {tool.table}") != expected:
                    wrong.add(tool.name)
    return {name: Samples(tuple(taken)) for name, taken in seconds.items() if name not in broken}, wrong


def _results(workload: str, bar: str, at_most: float, taken: dict[str, Samples], wrong: set[str]) -> list[Result]:
    """A line for each peer; only a peer with a right target can be the fastest."""
    mine = taken[Vitrine.name]
    others = {name: samples for name, samples in taken.items() if name != Vitrine.name}
    fastest = min((samples.median for name, samples in others.items() if name not in wrong), default=None)
    met = fastest is None or mine.median <= at_most * fastest
    verdict = judge(met, right=Vitrine.name not in wrong)
    return [
        Result(
            row="P1",
            workload=f"{workload}: {name}",
            bar=bar,
            verdict=verdict if samples.median == fastest else Verdict.INFORMATION,
            by_hand=samples,
            ours=mine,
            ratio=mine.median / samples.median,
            note="its target is WRONG" if name in wrong else f"beside {name}",
        )
        for name, samples in others.items()
    ]
