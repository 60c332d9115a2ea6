"""R1 and R2: the cost of control, from a request to its run and from one small run to the next."""

import socket
import statistics
import time
import urllib.error
import urllib.request

from bench import shelves
from bench.measuring import Result, Samples, judge, seconds_of
from bench.ratings import WARM_UP_TABLE
from bench.run_requests import finished_since, newest_run, request, wait_until_idle
from bench.setup import Setup
from bench.waiting import wait_until

REQUEST_BAR_SECONDS = 0.05
RUNS_BAR, GROWTH_BAR = 20, 1.2
FEW, FEW_TIMES, MANY = 10, 5, 1000


def request_to_running(setup: Setup) -> Result:
    """POST /run until the run has its row, with an idle runner and default settings."""
    setup.between.apply(
        {
            "name": "r1",
            "source_query": f"SELECT id, score FROM {WARM_UP_TABLE}",
            "target_table": "analytics.r1",
            "key_columns": ["id"],
        }
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    seconds: list[float] = []
    with setup.between.service("api", api_port=port), setup.between.service("runner"):
        wait_until(lambda: answers(f"{url}/health"), "the API answers")
        address = f"{url}/pipelines/r1/run"
        _request_and_see(setup, address)
        for _ in range(setup.rounds * 10):
            wait_until_idle(setup.dst, ["r1"])
            seconds.append(_request_and_see(setup, address))
        wait_until_idle(setup.dst, ["r1"])
    setup.dst.execute("DROP TABLE analytics.r1")
    taken = Samples(tuple(seconds))
    return Result(
        row="R1",
        workload="POST /run to RUNNING, idle runner",
        bar=f"p50 < {REQUEST_BAR_SECONDS * 1000:.0f} ms",
        verdict=judge(taken.median < REQUEST_BAR_SECONDS, right=True),
        ours=taken,
    )


def _request_and_see(setup: Setup, address: str) -> float:
    before = newest_run(setup.dst)
    began = time.perf_counter()
    urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=10).close()
    wait_until(lambda: newest_run(setup.dst) > before, "the run has started", pause=0.001)
    return time.perf_counter() - began


def small_pipelines(setup: Setup) -> list[Result]:
    """A hundred changed rows in each of ten and of a thousand pipelines, one runner."""
    many = max(2 * FEW, round(MANY * min(setup.scale * 10, 1)))
    shelves.create(setup.src, many)
    setup.between.apply(*shelves.definitions(many))
    few: list[float] = []
    rounds: list[tuple[float, list[float]]] = []
    with setup.between.service("runner"):
        _run(setup, many)  # the first load of each
        for _ in range(setup.rounds):
            for _ in range(FEW_TIMES):
                few += _changed_run(setup, FEW)[1]
            rounds.append(_changed_run(setup, many))
    right = shelves.are_right(setup.src, setup.dst, range(0, many, max(1, many // 50)))
    whole = Samples(tuple(elapsed for elapsed, _ in rounds))
    per_run = [seconds for _, taken in rounds for seconds in taken]
    rate = many / whole.median
    ratio = statistics.median(per_run) / statistics.median(few)
    return [
        Result(
            row="R2",
            workload=f"{many:,} pipelines of {shelves.CHANGED} changed rows each, one runner",
            bar=f"≥ {RUNS_BAR} runs/s",
            verdict=judge(rate >= RUNS_BAR, right=right),
            ours=whole,
            note=f"{rate:.1f} runs/s",
            facts={"runs_per_second": rate},
        ),
        Result(
            row="R2",
            workload=f"one run of them, among {many:,} and among {FEW}",
            bar=f"≤ {GROWTH_BAR} × the time",
            verdict=judge(ratio <= GROWTH_BAR, right=right),
            ours=Samples(tuple(per_run)),
            ratio=ratio,
            note=f"among {FEW}: {Samples(tuple(few))}",
        ),
    ]


def _changed_run(setup: Setup, count: int) -> tuple[float, list[float]]:
    """Change rows of the first pipelines and run them; the seconds of the whole, and of each run."""
    shelves.change(setup.src, count)
    setup.checkpoint()
    last = newest_run(setup.dst)
    elapsed = seconds_of(lambda: _run(setup, count))
    return elapsed, finished_since(setup.dst, last, expected=count, rows_read=shelves.CHANGED).seconds


def _run(setup: Setup, count: int) -> None:
    request(setup.dst, shelves.names(count))
    wait_until_idle(setup.dst, shelves.names(count))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
