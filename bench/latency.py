"""S1: a hundred changed rows with a runner that is already running, from the request to the end of the run."""

from bench import ratings
from bench.increments import INCREMENTAL
from bench.measuring import Result, Samples, Verdict, judge, seconds_of
from bench.run_requests import request, wait_until_idle
from bench.setup import Setup

CHANGED = 100
PEER_BAR = 0.25
POLL_SECONDS = 0.002


def small_change(setup: Setup, *, peer: Samples | None = None) -> Result:
    """`peer` holds the seconds of the fastest peer for the same job."""
    target = "analytics.ratings_s1"
    definition = {"name": "changes_s1", "source_query": ratings.query(), "target_table": target, **INCREMENTAL}
    setup.between.apply(definition)
    seconds: list[float] = []
    with setup.between.service("runner"):
        _run(setup)  # the first load
        _run(setup)
        for number in range(setup.rounds * 3):
            ratings.change(setup.src, CHANGED, seed=300 + number)
            setup.checkpoint()
            seconds.append(seconds_of(lambda: _run(setup)))
    right = setup.src.digest(ratings.query()) == setup.dst.digest(ratings.query(target))
    setup.dst.execute(f"DROP TABLE {target}")
    return judged(Samples(tuple(seconds)), peer, right=right)


def judged(mine: Samples, peer: Samples | None, *, right: bool) -> Result:
    ratio = mine.median / peer.median if peer else None
    return Result(
        row="S1",
        workload=f"{CHANGED} changed rows, warm runner, request to finished",
        bar="4 × faster than ingestr",
        verdict=Verdict.OPEN if ratio is None and right else judge((ratio or 0) <= PEER_BAR, right=right),
        by_hand=peer,
        ours=mine,
        ratio=ratio,
        note="beside ingestr" if peer else "",
    )


def _run(setup: Setup) -> None:
    request(setup.dst, ["changes_s1"])
    wait_until_idle(setup.dst, ["changes_s1"], pause=POLL_SECONDS)
