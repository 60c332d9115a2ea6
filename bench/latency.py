"""S1: a hundred changed rows, a runner that is already there, from the request to the end of its run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from bench import ours, ratings
from bench.duel import digest
from bench.increments import pipeline_of_changes
from bench.measuring import Result, Samples, Verdict, seconds_of
from bench.stage import Stage
from vitrine.model import Pipeline
from vitrine.settings import child_environment
from vitrine.status import RunStatus
from vitrine.store import pipelines, runs

CHANGED = 100
LONGEST = 60.0


def small_change(stage: Stage, *, peer: Samples | None = None) -> Result:
    """`peer` is what the fastest peer takes for the same job."""
    target = "analytics.ratings_s1"
    pipeline = pipeline_of_changes(stage, "changes_s1", target)
    ours.run(stage.dst, stage.settings, pipeline)
    seconds: list[float] = []
    right = True
    with warm_runner(stage):
        _request_and_wait(stage, pipeline)
        for number in range(stage.rounds * 3):
            ratings.change(stage.src, CHANGED, seed=300 + number)
            stage.calm()
            seconds.append(seconds_of(lambda: _request_and_wait(stage, pipeline)))
        written = f"SELECT {ratings.COLUMNS} FROM {target}"
        right = digest(stage.src, ratings.QUERY) == digest(stage.dst, written)
    stage.dst.execute(f"DROP TABLE {target}")
    return judged(Samples(tuple(seconds)), peer, right=right)


def judged(mine: Samples, peer: Samples | None, *, right: bool) -> Result:
    ratio = mine.median / peer.median if peer else None
    verdict = Verdict.OPEN if ratio is None else Verdict.MET if ratio <= 0.25 else Verdict.MISSED
    return Result(
        row="S1",
        workload=f"{CHANGED} changed rows, warm runner, request to finished",
        bar="4 × faster than ingestr",
        verdict=verdict if right else Verdict.WRONG,
        by_hand=peer,
        ours=mine,
        ratio=ratio,
        note="beside ingestr" if peer else "",
    )


@contextmanager
def warm_runner(stage: Stage) -> Generator[None]:
    """`vitrine runner` with default settings."""
    environment = {
        **child_environment(stage.dst.url),
        "VITRINE_SOURCES__CINEMA": stage.src.url,
        "VITRINE_LOG_LEVEL": "error",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "vitrine", "runner"], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGTERM)


def _request_and_wait(stage: Stage, pipeline: Pipeline) -> None:
    store = stage.dst.connection
    _, request = pipelines.request_run(store, pipeline.id, trigger="api")
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        newest = next(iter(runs.list_page(store, pipeline.id, limit=1)), None)
        if newest is not None and newest.request_id == request and newest.status is not RunStatus.RUNNING:
            if newest.status is not RunStatus.SUCCESS:
                raise RuntimeError(f"the run of '{pipeline.name}' ended {newest.status}: {newest.error_message}")
            return
        time.sleep(0.002)
    raise TimeoutError(f"no runner finished '{pipeline.name}' within {LONGEST:g} s")
