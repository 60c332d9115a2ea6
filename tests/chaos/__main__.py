"""Random faults under three runners while writers commit; at the end every mart must equal its source.

`make chaos SECONDS=60 SEED=1`. The seed chooses the actions; their timing differs from run to run.
"""

import argparse
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from tests.chaos.faults import Faults, Runners
from tests.chaos.marts import MARTS, TABLES
from tests.chaos.writers import Writer
from tests.helpers import journal
from tests.helpers.folders import open_folder
from tests.helpers.processes import free_port
from tests.helpers.proxy import Proxy
from tests.helpers.waiting import wait_until
from vitrine.core.status import LEASED
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines
from vitrine.store.migrate import migrate

RUNNERS, WRITERS = 3, 6
ROOT = Path(__file__).parents[2]

EXPECTED_CODES = frozenset(
    {None, "TRANSIENT", "LEASE_EXPIRED", "CRASH_LOOP", "RELEASED", "BATCHES_LOST", "CONNECTION_LIMIT"}
)
"""Error codes that these faults may cause; any other is a defect."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--keep", type=Path, help="write the runners' logs to this folder and keep them")
    options = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # server crashes are expected here
    with open_folder("vitrine-chaos-") as folder:
        logs: Path = options.keep or folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (
            EmbeddedPostgres(folder / "postgres", port=free_port(), fast=True) as server,
            Proxy(server.port or 0) as proxy,
        ):
            prepare(server)
            return run_chaos(server, proxy, logs, options.seconds, options.seed)


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def prepare(server: EmbeddedPostgres) -> None:
    """Create the source tables, the pipelines and the journal of status changes."""
    server.ensure_database("vitrine")
    migrate(server.url())
    sys.path.append(str(ROOT))
    settings = Settings.model_validate({"database_url": server.url(), "transform_modules": "tests.chaos.tasks"})
    with connect(server.url(), name="chaos") as connection:
        # A lease token must never be issued twice, even after a crash. Only batches may be lost; they are read again.
        connection.execute("ALTER DATABASE vitrine SET synchronous_commit = on")
        cinema.create_schema(connection)
        connection.execute(TABLES)
        journal.start(connection)
        for mart in MARTS:
            mart.create(connection, settings)


def run_chaos(server: EmbeddedPostgres, proxy: Proxy, logs: Path, seconds: float, seed: int) -> int:
    writers_stop, over = threading.Event(), threading.Event()
    writers = [Writer(server.url(), seed * 100 + number, writers_stop) for number in range(WRITERS)]
    operator = Operator(server.url(), seed, over)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    runners = Runners(
        proxy.url(server.tcp_url()), logs, RUNNERS, PYTHONPATH=path, VITRINE_TRANSFORM_MODULES="tests.chaos.tasks"
    )
    faults = Faults(seed, server, proxy, runners)
    try:
        for thread in (*writers, operator):
            thread.start()
        timer = threading.Timer(seconds, over.set)
        timer.start()
        faults.inject(until=over)
        writers_stop.set()
        for thread in (*writers, operator):
            thread.join()
        proxy.cancel_drops()
        with connect(server.url(), name="chaos") as connection:
            settle(connection)
            report(f"seed {seed}, {seconds:g} s, {RUNNERS} runners, {sum(one.commits for one in writers)} commits")
            report(f"faults: {listed(faults.done)}")
            report(f"requests: {listed(operator.requested)}")
            return judge(connection)
    finally:
        over.set()
        writers_stop.set()
        runners.close()


class Operator(threading.Thread):
    """Requests runs all the time, and sometimes a pause."""

    def __init__(self, url: str, seed: int, over: threading.Event) -> None:
        super().__init__(name="operator", daemon=True)
        self._url = url
        self._random = random.Random(seed)
        self._over = over
        self.requested: Counter[str] = Counter()

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(VitrineError), connect(self._url, name="chaos:operator") as connection:
                while not self._over.wait(self._random.uniform(0.02, 0.2)):
                    self._request(connection)

    def _request(self, connection: Connection) -> None:
        name = self._random.choice(MARTS).name
        if self._random.random() < 0.1:
            pipelines.request_pause(connection, name)
            self.requested["pause"] += 1
        else:
            pipelines.request_run(connection, name, trigger="api")
            self.requested["run"] += 1


def settle(connection: Connection) -> None:
    """Run every pipeline once more, without faults, until it succeeds."""
    for mart in MARTS:
        for _ in range(5):
            wait_until(lambda: pipelines.get(connection, mart.name).status not in LEASED, 60, f"the end of {mart.name}")  # noqa: B023
            _, request = pipelines.request_run(connection, mart.name, trigger="api")
            if ended(connection, request) == "succeeded":
                break
    busy = "SELECT FROM etl.etl_pipelines WHERE status <> 'IDLE'"
    wait_until(lambda: not connection.execute(busy).fetchall(), 60, "the end of every run")


def ended(connection: Connection, request: UUID) -> str:
    def over() -> str | None:
        state = history.get_request(connection, request).state
        return state if state in ("succeeded", "failed") else None

    return wait_until(over, 90, "the last run")


def judge(connection: Connection) -> int:
    """0 if every mart equals its source, every status change is legal, and no run ended with an unexpected error."""
    rows = connection.execute("SELECT status, error_code, count(*) AS n FROM etl.etl_runs GROUP BY 1, 2 ORDER BY 1, 2")
    ends = {(row["status"], row["error_code"]): row["n"] for row in rows}
    report("runs:   " + listed({f"{status} {code or ''}".strip(): n for (status, code), n in ends.items()}))
    wrong = [f"a run ended with {code}" for _, code in ends if code not in EXPECTED_CODES]
    for mart in MARTS:
        differing = mart.wrong_rows(connection)
        report(f"  {mart.name:<20} {mart.count(connection):>7} rows, {len(differing)} wrong")
        wrong += [f"{mart.name}: {row}" for row in differing[:3]]
    illegal = set(journal.moves(connection)) - journal.LEGAL
    wrong += [f"a status changed from {old} to {new}, which is not legal" for old, new in illegal]
    for one in wrong:
        report(f"WRONG: {one}")
    report("every mart equals its source" if not wrong else f"{len(wrong)} defects found")
    return 1 if wrong else 0


def listed(counts: "Counter[str] | dict[str, int]") -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    report(f"{time.monotonic() - began:.0f} s in total")
    sys.exit(code)
