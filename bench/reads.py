"""A2: reads of the API, at a fixed rate while a runner moves the ratings, beside bare routes with the same queries."""

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench import crowd, ratings
from bench.control import answers, free_port
from bench.measuring import Result, Samples, judge, turns
from bench.run_requests import request
from bench.setup import Setup
from bench.tree import ROOT, this_tree
from bench.waiting import wait_until

RATE = 50
"""Requests in a second; each is sent at its time, whether the one before it is answered or not."""

SECONDS = 4.0
BAR = 2.0
CLIENTS = 16
PATHS = {"list": "/pipelines", "status": "/pipelines/p0500/status", "runs": "/pipelines/p0500/runs"}


def beside_bare_routes(setup: Setup) -> list[Result]:
    try:
        ours, bare = _take_turns(setup)
    finally:  # other rows measure stores without a crowd
        setup.dst.execute("DROP TABLE IF EXISTS analytics.ratings_a2", "DELETE FROM etl.etl_pipelines")
    return [_result(name, Samples(tuple(ours[name])), Samples(tuple(bare[name]))) for name in PATHS]


def _take_turns(setup: Setup) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The latencies of each path: ours, and those of the bare routes."""
    crowd.fill(setup.dst.connection)
    setup.between.apply(
        {
            "name": "a2_load",
            "source_query": ratings.query(),
            "target_table": "analytics.ratings_a2",
            "key_columns": ["id"],
        }
    )
    ports = free_port(), free_port()
    ours: dict[str, list[float]] = {name: [] for name in PATHS}
    bare: dict[str, list[float]] = {name: [] for name in PATHS}
    with (
        setup.between.service("api", api_port=ports[0]),
        _bare_routes(setup.dst.url, ports[1]),
        setup.between.service("runner"),
    ):
        for port in ports:
            wait_until(lambda port=port: answers(f"http://127.0.0.1:{port}/health"), "the API answers")
        with _moving(setup):
            for path in PATHS.values():  # the first requests import modules and open connections
                for port in ports:
                    latencies(port, path, count=CLIENTS)
            for _, ours_first in turns(setup.rounds):
                for name, path in PATHS.items():
                    sides = [(ours, ports[0]), (bare, ports[1])]
                    for taken, port in sides if ours_first else reversed(sides):
                        taken[name] += latencies(port, path, count=round(RATE * SECONDS))
    return ours, bare


@contextmanager
def _bare_routes(url: str, port: int) -> Generator[None]:
    command = [sys.executable, "-m", "bench.bare_api", url, str(port)]
    with this_tree().start(command, {"PYTHONPATH": str(ROOT)}, subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _moving(setup: Setup) -> Generator[None]:
    """Until the end, a runner loads the ratings into a new table, again and again."""
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set():
            if setup.dst.fetch("SELECT FROM etl.etl_pipelines WHERE name = 'a2_load' AND status = 'IDLE'"):
                setup.dst.execute("DROP TABLE IF EXISTS analytics.ratings_a2")
                request(setup.dst, ["a2_load"])
            stop.wait(0.1)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def latencies(port: int, path: str, *, count: int) -> list[float]:
    """Seconds from the time at which a request was due to the end of its answer; AssertionError for another status."""
    local = threading.local()
    began = time.perf_counter() + 0.1

    def send(number: int) -> float:
        due = began + number / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        local.connection.request("GET", path)
        response = local.connection.getresponse()
        response.read()
        assert response.status == 200, f"GET {path} on port {port}: {response.status}"
        return time.perf_counter() - due

    with ThreadPoolExecutor(CLIENTS) as threads:
        return list(threads.map(send, range(count)))


def _result(name: str, ours: Samples, bare: Samples) -> Result:
    ratio = ours.median / bare.median
    slow = f"p99 {percentile(ours, 0.99) * 1000:.0f} ms, bare {percentile(bare, 0.99) * 1000:.0f} ms"
    return Result(
        row="A2",
        workload=f"{name}: {RATE}/s with {crowd.PIPELINES:,} pipelines, {crowd.RUNS:,} runs, a load beside",
        bar=f"p50 ≤ {BAR:g} × bare",
        verdict=judge(ratio <= BAR, right=True),
        by_hand=bare,
        ours=ours,
        ratio=ratio,
        note=f"p50 {ours.median * 1000:.1f} ms, {slow}",
        facts={"p99": percentile(ours, 0.99), "bare_p99": percentile(bare, 0.99)},
    )


def percentile(samples: Samples, part: float) -> float:
    return sorted(samples.seconds)[int(part * (len(samples.seconds) - 1))]
