"""C2: twenty open pages of the console for ten minutes: memory, the API beside them, and the stop of the process."""

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench import console_store, page_clients
from bench.console_store import ConsoleStore
from bench.control import answers, free_port
from bench.measuring import Result, Samples, judge
from bench.memory import resident_mb
from bench.overview import VIEWERS, shows_marts
from bench.page_clients import Clients
from bench.processor import own_seconds
from bench.reads import RATE, latencies, percentile
from bench.setup import Setup
from bench.waiting import wait_until

MINUTES = 10.0
SHORTEST_MINUTES = 0.5
SLICE_SECONDS = 2.0
"""Both processes are measured in turns of this length."""

PATHS = ("/pipelines", "/pipelines/p0100/status", "/pipelines/p0100/runs")
P99_BAR = 1.1
MEMORY_BAR_MB = 10.0
STOP_BAR_SECONDS = 6.0
"""A stop gives open requests five seconds."""

FINISH_RUNS = """
WITH chosen AS (
  SELECT id FROM etl.etl_pipelines WHERE name < 'p0050' AND status = 'IDLE' ORDER BY random() LIMIT 5),
done AS (
  INSERT INTO etl.etl_runs (pipeline_id, request_id, attempt, trigger, kind, status, started_at, finished_at, rows_read,
         config, runner, lease_token)
  SELECT id, gen_random_uuid(), 1, 'schedule', 'full', 'SUCCESS', now() - interval '1 second', now(), 1000, '{}',
         'worker-1', 1
    FROM chosen RETURNING pipeline_id)
UPDATE etl.etl_pipelines SET fresh_as_of = now() FROM done WHERE id = pipeline_id
"""
"""What five runs of the first page leave when they succeed."""


@dataclass
class _Sides:
    """Latencies of the API in the process with pages and in the one without, taken in turns."""

    ports: tuple[int, int]
    with_pages: list[float] = field(default_factory=list[float])
    without: list[float] = field(default_factory=list[float])

    def measure(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        for number, path in enumerate(itertools.cycle(PATHS)):
            if time.monotonic() > ends:
                return
            sides = [(self.with_pages, self.ports[0]), (self.without, self.ports[1])]
            for taken, port in reversed(sides) if number % 2 else sides:
                taken += latencies(port, path, count=round(RATE * SLICE_SECONDS))


def twenty_pages(setup: Setup) -> list[Result]:
    seconds = 60 * max(SHORTEST_MINUTES, MINUTES * min(setup.scale, 1))
    ports = free_port(), free_port()
    with (
        console_store.filled(setup) as store,
        store.installation.service("api", api_port=ports[0]) as watched,
        store.installation.service("api", api_port=ports[1]) as other,
    ):
        for port in ports:
            wait_until(lambda port=port: answers(f"http://127.0.0.1:{port}/health"), "the API answers")
        address = f"http://127.0.0.1:{ports[0]}"
        _Sides(ports).measure(3 * SLICE_SECONDS)  # the first requests import modules and open connections
        # and so do the first pages: what they leave is not what pages leave each time
        with page_clients.opened(address, VIEWERS):
            _Sides(ports).measure(3 * SLICE_SECONDS)
        store.wait_until_quiet()
        memory = {"before": resident_mb(watched.pid)}
        requests = resident_mb(other.pid)
        alone, beside = _Sides(ports), _Sides(ports)
        with _changing(store):
            alone.measure(seconds / 20)
        began = own_seconds(watched.pid)
        with page_clients.opened(address, VIEWERS) as clients:
            with _changing(store):
                beside.measure(seconds / 10)
                memory["at first"] = resident_mb(watched.pid)
                beside.measure(seconds * 9 / 10)
            memory["at the end"] = resident_mb(watched.pid)
            used = (own_seconds(watched.pid) - began) / seconds
            right = _shows_the_store(store, clients)
            received = clients.ask()
        store.wait_until_quiet()
        memory["after"] = resident_mb(watched.pid)
        requests = resident_mb(other.pid) - requests
        stopped = _stop(address, watched)
    minutes = f"{VIEWERS} pages for {seconds / 60:g} minutes"
    messages = f"{received['messages']:,} messages of {received['characters'] / received['messages'] / 1000:.1f} kB"
    return [
        _beside_pages(minutes, alone, beside, right=right, note=f"{messages}; {used:.0%} of a core"),
        _memory(minutes, memory, requests, right=right),
        Result(
            row="C2",
            workload=f"SIGTERM with {VIEWERS} open pages",
            bar=f"≤ {STOP_BAR_SECONDS:g} s",
            verdict=judge(stopped <= STOP_BAR_SECONDS, right=watched.returncode == 0),
            ours=Samples((stopped,)),
        ),
    ]


@contextmanager
def _changing(store: ConsoleStore) -> Generator[None]:
    """Until the end, five runs of the first page succeed every second."""
    stop = threading.Event()

    def change() -> None:
        while not stop.wait(1.0):
            store.database.execute(FINISH_RUNS)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _shows_the_store(store: ConsoleStore, clients: Clients) -> bool:
    """Whether all pages show what a statement by hand finds, soon after the last change."""

    def agrees() -> bool:
        found = clients.ask()
        return found["equal"] and shows_marts(store, found["shown"]["rows"])

    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        if agrees():
            return True
        time.sleep(1)
    return False


def _stop(address: str, process: "subprocess.Popen[str]") -> float:
    with page_clients.opened(address, VIEWERS):
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait()
        return time.perf_counter() - began


def _beside_pages(minutes: str, alone: _Sides, beside: _Sides, *, right: bool, note: str) -> Result:
    ours, others = Samples(tuple(beside.with_pages)), Samples(tuple(beside.without))
    ratio = percentile(ours, 0.99) / percentile(others, 0.99)
    before = _milliseconds(Samples(tuple(alone.with_pages)))
    return Result(
        row="C2",
        workload=f"list, status and runs of the API, {RATE}/s, {minutes}; by hand: a process without pages",
        bar=f"p99 ≤ {P99_BAR:g} × without pages",
        verdict=judge(ratio <= P99_BAR, right=right),
        by_hand=others,
        ours=ours,
        ratio=ratio,
        note=f"p50, p99 {_milliseconds(ours)}, without {_milliseconds(others)}, before {before}; {note}",
        facts={
            "p99": percentile(ours, 0.99),
            "p99_without": percentile(others, 0.99),
            "p99_before": percentile(Samples(tuple(alone.with_pages)), 0.99),
            "p99_without_before": percentile(Samples(tuple(alone.without)), 0.99),
        },
    )


def _milliseconds(samples: Samples) -> str:
    return f"{samples.median * 1000:.1f}, {percentile(samples, 0.99) * 1000:.0f} ms"


def _memory(minutes: str, memory: dict[str, float], requests: float, *, right: bool) -> Result:
    """`requests`: how much the process without pages has grown by the same requests."""
    grown = memory["after"] - memory["before"] - requests
    shown = ", ".join(f"{name} {value:.0f} MB" for name, value in memory.items())
    return Result(
        row="C2",
        workload=f"memory of the API, {minutes}",
        bar=f"+{MEMORY_BAR_MB:g} MB when they are closed, beside the process without pages",
        verdict=judge(grown <= MEMORY_BAR_MB, right=right),
        note=f"{shown}; without pages {requests:+.0f} MB",
        facts={**memory, "without pages": requests},
    )
