"""P2: D1 and D2 beside reladiff, command beside command, on one server reached by TCP."""

import json

from bench import ratings, reconciling
from bench.measuring import Result, Samples, judge, ratio_of, seconds_of, turns
from bench.peers import environments
from bench.setup import Setup

COMPARED = tuple(name.strip() for name in ratings.COLUMNS.split(",") if name.strip() != "id")
BAR = "≤ reladiff"


class Reladiff:
    """`reladiff` from one database to another, by hashes of key ranges; every column is compared."""

    name = "reladiff"

    def __init__(self, source: str, target: str, table: str) -> None:
        self._folder = environments.ensure(self.name)
        self._sides = [source, ratings.TABLE, target, table]

    def count(self) -> int:
        """The number of rows that it reports: a changed row twice, one line for each side."""
        columns = [part for name in COMPARED for part in ("-c", name)]
        command = [str(self._folder / "bin" / "reladiff"), *self._sides, "-k", "id", *columns]
        command += ["--algorithm", "hashdiff", "--threads", "2", "--assume-unique-key"]
        output = environments.run(command, {"PATH": "/usr/bin:/bin", "HOME": str(self._folder)}, self._folder)
        return sum(line.startswith(("+ ", "- ")) for line in output.splitlines())


def compare(setup: Setup) -> list[Result]:
    """Equal rows, then ten damaged ones: found by both, repaired by ours only, after the measurement."""
    reconciling.prepare(setup)
    peer = Reladiff(setup.src.url, setup.dst.url, reconciling.TARGET)
    equal = _take_turns(setup, peer, damaged=False)
    damaged = _take_turns(setup, peer, damaged=True)
    setup.dst.execute(f"DROP TABLE {reconciling.TARGET}")
    workloads = {
        f"D1, {setup.ratings:,} equal rows": equal,
        f"D2, {reconciling.DAMAGED} damaged of {setup.ratings:,} rows found": damaged,
    }
    return [
        Result(
            row="P2",
            workload=f"{workload}: {peer.name}",
            bar=BAR,
            verdict=judge(ratio_of(ours, theirs) <= 1, right=True),
            by_hand=theirs,
            ours=ours,
            ratio=ratio_of(ours, theirs),
            note=f"beside {peer.name}",
        )
        for workload, (theirs, ours) in workloads.items()
    ]


def _take_turns(setup: Setup, peer: Reladiff, *, damaged: bool) -> tuple[Samples, Samples]:
    """The seconds of both. A side that finds another number of rows than were damaged ends the benchmark."""
    theirs: list[float] = []
    ours: list[float] = []
    # four changed rows are two lines each
    expected = reconciling.DAMAGED + reconciling.CHANGED if damaged else 0

    def search_theirs() -> None:
        found = peer.count()
        if found != expected:
            raise RuntimeError(f"{peer.name} reports {found} rows instead of {expected}")

    def search_ours() -> None:
        text = setup.between.command("reconcile", reconciling.NAME, "--deep", "--json", ends_with=2 if damaged else 0)
        report = json.loads(text)
        found = sum(report[kind]["count"] for kind in ("missing", "extra", "different"))
        if found != (reconciling.DAMAGED if damaged else 0):
            raise RuntimeError(f"vitrine reports {found} rows instead of {reconciling.DAMAGED}")

    for number, ours_first in turns(setup.rounds):
        if damaged:
            reconciling.damage(setup, seed=number)
        for search, seconds in ((search_ours, ours), (search_theirs, theirs))[:: 1 if ours_first else -1]:
            setup.checkpoint()
            seconds.append(seconds_of(search))
        if damaged:
            setup.between.command("reconcile", reconciling.NAME, "--repair")
    return Samples(tuple(theirs)), Samples(tuple(ours))
