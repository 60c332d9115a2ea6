"""R1 and R2: what the control costs, from a request to a run, and from one small run to the next."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager

from bench import ours
from bench.duel import digest
from bench.increments import INCREMENTAL
from bench.latency import warm_runner
from bench.measuring import Result, Samples, Verdict, seconds_of
from bench.stage import Stage
from vitrine.model import Pipeline
from vitrine.settings import child_environment

REQUEST_BAR_SECONDS = 0.05
RUNS_BAR, GROWTH_BAR = 20, 1.2
FEW, FEW_TIMES, MANY = 10, 5, 1000
ROWS, CHANGED = 200, 100
LONGEST = 600.0

SOURCE = "ugc.shelves"
COLUMNS = "id, score, modified"


def request_to_running(stage: Stage) -> Result:
    """POST /run until the pipeline is RUNNING, with an idle runner and default settings."""
    fields = {"source_query": "SELECT id, name FROM content.genre", "key_columns": ["id"]}
    pipeline = ours.create(stage.dst, stage.settings, name="r1", target_table="analytics.r1", **fields)
    seconds: list[float] = []
    with _api(stage) as url, warm_runner(stage):
        address = f"{url}/pipelines/{pipeline.name}/run"
        _post(address)
        _wait(lambda: _newest_run(stage, pipeline) > 0)
        for _ in range(stage.rounds * 10):
            _wait(lambda: _busy(stage, [pipeline]) == 0)
            seconds.append(_request_and_see(stage, pipeline, address))
    stage.dst.execute("DROP TABLE analytics.r1")
    taken = Samples(tuple(seconds))
    return Result(
        row="R1",
        workload="POST /run to RUNNING, idle runner",
        bar=f"p50 < {REQUEST_BAR_SECONDS * 1000:.0f} ms",
        verdict=Verdict.MET if taken.median < REQUEST_BAR_SECONDS else Verdict.MISSED,
        ours=taken,
    )


def _request_and_see(stage: Stage, pipeline: Pipeline, address: str) -> float:
    before = _newest_run(stage, pipeline)
    began = time.perf_counter()
    _post(address)
    _wait(lambda: _newest_run(stage, pipeline) > before, pause=0.001)
    return time.perf_counter() - began


def small_pipelines(stage: Stage) -> list[Result]:
    """A hundred changed rows in each of ten and of a thousand pipelines, one runner."""
    many = max(2 * FEW, round(MANY * min(stage.scale * 10, 1)))
    _fill(stage, many)
    made = [_pipeline(stage, number) for number in range(many)]
    few: list[float] = []
    rounds: list[tuple[float, list[float]]] = []
    with warm_runner(stage):
        _run_all(stage, made)  # the first load of each
        for _ in range(stage.rounds):
            for _ in range(FEW_TIMES):
                few += _changed_run(stage, made[:FEW])[1]
            rounds.append(_changed_run(stage, made))
    right = all(_equal(stage, number) for number in range(0, many, max(1, many // 50)))
    whole = Samples(tuple(elapsed for elapsed, _ in rounds))
    per_run = [seconds for _, taken in rounds for seconds in taken]
    rate = many / whole.median
    ratio = statistics.median(per_run) / statistics.median(few)
    return [
        Result(
            row="R2",
            workload=f"{many:,} pipelines of {CHANGED} changed rows each, one runner",
            bar=f"≥ {RUNS_BAR} runs/s",
            verdict=_verdict(rate >= RUNS_BAR, right=right),
            ours=whole,
            note=f"{rate:.1f} runs/s",
            facts={"runs_per_second": rate},
        ),
        Result(
            row="R2",
            workload=f"one run of them, among {many:,} and among {FEW}",
            bar=f"≤ {GROWTH_BAR} × the time",
            verdict=_verdict(ratio <= GROWTH_BAR, right=right),
            ours=Samples(tuple(per_run)),
            ratio=ratio,
            note=f"among {FEW}: {Samples(tuple(few))}",
        ),
    ]


def _verdict(met: bool, *, right: bool) -> Verdict:
    return Verdict.WRONG if not right else Verdict.MET if met else Verdict.MISSED


def _fill(stage: Stage, count: int) -> None:
    stage.src.execute(
        f"DROP TABLE IF EXISTS {SOURCE}",
        f"CREATE TABLE {SOURCE} (shelf integer, id bigint, score integer, modified timestamptz)",
        f"ALTER TABLE {SOURCE} ADD PRIMARY KEY (shelf, id)",
        f"INSERT INTO {SOURCE} SELECT shelf, id, 1, timestamptz '2024-01-01' + id * interval '1 ms'"
        f"  FROM generate_series(0, {count - 1}) AS shelf, generate_series(1, {ROWS}) AS id",
        f"CREATE INDEX ON {SOURCE} (shelf, modified, id)",
        f"VACUUM ANALYZE {SOURCE}",
    )


def _query(number: int) -> str:
    return f"SELECT {COLUMNS} FROM {SOURCE} WHERE shelf = {number}"


def _pipeline(stage: Stage, number: int) -> Pipeline:
    fields = {"name": f"shelf_{number}", "target_table": f"analytics.shelf_{number}"}
    return ours.create(stage.dst, stage.settings, source_query=_query(number), **fields, **INCREMENTAL)


def _changed_run(stage: Stage, made: list[Pipeline]) -> tuple[float, list[float]]:
    """Change some rows of each and run them all; the seconds of the whole, and of each run."""
    stage.src.execute(
        f"UPDATE {SOURCE} SET score = score + 1, modified = newest.modified + id * interval '1 ms'"
        f"  FROM (SELECT max(modified) + interval '1 hour' AS modified FROM {SOURCE}) AS newest"
        f" WHERE shelf < {len(made)} AND id <= {CHANGED}",
        f"VACUUM ANALYZE {SOURCE}",
    )
    stage.calm()
    last = stage.dst.number("SELECT max(id) FROM etl.etl_runs")
    elapsed = seconds_of(lambda: _run_all(stage, made))
    rows = stage.dst.connection.execute(
        "SELECT status, rows_read, extract(epoch FROM finished_at - started_at)::float8 AS seconds"
        "  FROM etl.etl_runs WHERE id > %s",
        [last],
    ).fetchall()
    if [(row["status"], row["rows_read"]) for row in rows] != [("SUCCESS", CHANGED)] * len(made):
        raise RuntimeError("a run did not succeed, or did not read what had changed")
    return elapsed, [row["seconds"] for row in rows]


def _run_all(stage: Stage, made: list[Pipeline]) -> None:
    """Ask for all at once, as so many calls of the API would have left them."""
    store = stage.dst.connection
    with store.transaction():
        store.execute(
            "UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED', request_id = gen_random_uuid(),"
            " requested_at = now(), requested_trigger = 'api' WHERE id = ANY(%s)",
            [[pipeline.id for pipeline in made]],
        )
        store.execute("SELECT pg_notify('vitrine', '')")
    _wait(lambda: _busy(stage, made) == 0, pause=0.01)


def _busy(stage: Stage, made: list[Pipeline]) -> int:
    row = stage.dst.connection.execute(
        "SELECT count(*) AS busy FROM etl.etl_pipelines WHERE status <> 'IDLE' AND id = ANY(%s)",
        [[pipeline.id for pipeline in made]],
    ).fetchone()
    return row["busy"] if row else 0


def _equal(stage: Stage, number: int) -> bool:
    return digest(stage.src, _query(number)) == digest(stage.dst, f"SELECT {COLUMNS} FROM analytics.shelf_{number}")


def _newest_run(stage: Stage, pipeline: Pipeline) -> int:
    row = stage.dst.connection.execute(
        "SELECT coalesce(max(id), 0) AS id FROM etl.etl_runs WHERE pipeline_id = %s", [pipeline.id]
    ).fetchone()
    return row["id"] if row else 0


@contextmanager
def _api(stage: Stage) -> Generator[str]:
    """`vitrine api`, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {**child_environment(stage.dst.url), "VITRINE_API_PORT": str(port), "VITRINE_LOG_LEVEL": "error"}
    command = [sys.executable, "-m", "vitrine", "api"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(lambda: _answers(f"{url}/health"))
            yield url
        finally:
            os.kill(process.pid, signal.SIGTERM)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _post(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10).close()


def _wait(condition: Callable[[], bool], pause: float = 0.005) -> None:
    deadline = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {LONGEST:g} s")
        time.sleep(pause)
