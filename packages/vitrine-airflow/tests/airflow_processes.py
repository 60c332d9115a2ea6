"""A real Airflow on SQLite: its processes, its REST API and the logs of its tasks."""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.helpers.processes import GRACE_SECONDS, free_port
from tests.helpers.waiting import wait_until

TESTS = Path(__file__).parent
ROOT = TESTS.parents[2]
BIN = ROOT / ".venv-airflow" / "bin"
EXAMPLES = TESTS.parent / "example_dags"

START_SECONDS = 120
TASK_SECONDS = 90
ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
QUICK = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
}


@dataclass
class Process:
    """One of Airflow's own processes, which can be restarted."""

    arguments: Sequence[str]
    env: Mapping[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(
                [str(BIN / "airflow"), *self.arguments],
                env=dict(self.env),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self) -> None:
        """As an administrator does it."""
        assert self.running is not None
        self.running.terminate()
        self.running.wait(GRACE_SECONDS)

    def kill(self) -> None:
        """Ends the process with everything it has started; nothing of it is needed any more."""
        assert self.running is not None
        with suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()


@dataclass
class Airflow:
    """The REST API of the Airflow under test."""

    home: Path
    http: httpx.Client
    processes: Mapping[str, Process] = field(default_factory=dict[str, Process])

    def trigger(self, dag: str, **conf: str) -> "DagRun":
        run = DagRun(self, dag, uuid4().hex)
        body = {"dag_run_id": run.id, "logical_date": None, "conf": conf}
        answer = self.http.post(f"/api/v2/dags/{dag}/dagRuns", json=body)
        assert answer.is_success, answer.text
        return run

    def restart(self, name: str) -> None:
        self.processes[name].stop()
        self.processes[name].start()


@dataclass(frozen=True)
class DagRun:
    """One run of a DAG, whose only task is called `task`."""

    airflow: Airflow
    dag: str
    id: str

    def state(self, task: str = "task") -> str | None:
        return self._get(f"taskInstances/{task}")["state"]

    def wait_for(self, *states: str, task: str = "task") -> str:
        def reached() -> str | None:
            state = self.state(task)
            assert state in states or state not in ENDED, f"the task is {state}:\n{self.log(task)}"
            return state if state in states else None

        return wait_until(reached, timeout=TASK_SECONDS, what=f"{task} of {self.dag} in {states}")

    def wait_until_waiting(self) -> None:
        """Until the task has made its request, and its trigger, if it has one, is in the triggerer."""
        deferred = self.dag.endswith("_deferred")
        self.wait_for("deferred" if deferred else "running")
        seen = ") starting" if deferred else "was made at"
        wait_until(lambda: seen in self.log(), timeout=TASK_SECONDS, what=f"'{seen}' in the log of {self.dag}")

    def value(self, task: str = "task") -> dict[str, Any]:
        """What the task returned."""
        return self._get(f"taskInstances/{task}/xcomEntries/return_value?deserialize=true")["value"]

    def mark_failed(self) -> None:
        """As a user does it on the page of the task."""
        answer = self.airflow.http.patch(f"{self._path}/taskInstances/task", json={"new_state": "failed"})
        assert answer.is_success, answer.text

    def pid(self) -> int | None:
        return self._get("taskInstances/task")["pid"]

    def log(self, task: str = "task") -> str:
        folder = self.airflow.home / "logs" / f"dag_id={self.dag}" / f"run_id={self.id}" / f"task_id={task}"
        return "\n".join(file.read_text("utf-8") for file in sorted(folder.rglob("*.log*")))

    @property
    def _path(self) -> str:
        return f"/api/v2/dags/{self.dag}/dagRuns/{self.id}"

    def _get(self, path: str) -> dict[str, Any]:
        answer = self.airflow.http.get(f"{self._path}/{path}")
        assert answer.is_success, answer.text
        return answer.json()


@contextmanager
def running(folder: Path, connections: Mapping[str, str]) -> Generator[Airflow]:
    """Airflow with the DAGs of the tests and the example, and these connections as URIs."""
    port = free_port()
    dags = folder / "dags"
    shutil.copytree(TESTS / "dags", dags)
    shutil.copytree(EXAMPLES, dags, dirs_exist_ok=True)
    env = _environment(folder, dags, port, connections)
    subprocess.run([str(BIN / "airflow"), "db", "migrate"], env=env, check=True, capture_output=True)
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
            processes[name] = Process(list(_arguments(name, port)), env, folder / f"{name}.out")
            processes[name].start()
            stack.callback(processes[name].kill)
        http = stack.enter_context(httpx.Client(base_url=url, timeout=30, trust_env=False))
        wait_until(lambda: _log_in(http), timeout=START_SECONDS, what="the REST API of Airflow")
        airflow = Airflow(folder, http, processes)
        wait_until(lambda: _parsed(http), timeout=START_SECONDS, what="the DAGs of the tests")
        yield airflow


def _arguments(name: str, port: int) -> Iterator[str]:
    yield name
    if name == "api-server":
        yield from ("--host", "127.0.0.1", "--port", str(port), "--workers", "1")
    elif name in ("scheduler", "triggerer"):
        yield "--skip-serve-logs"  # the tests read the files; the server would listen on every address


def _environment(home: Path, dags: Path, port: int, connections: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "VITRINE_"))}
    return {
        **inherited,
        **QUICK,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API_AUTH__JWT_SECRET": "the secret of this Airflow, which ends with its tests",
        "AIRFLOW__API__SECRET_KEY": "the key of this Airflow, which ends with its tests",
        **{f"AIRFLOW_CONN_{name.upper()}": uri for name, uri in connections.items()},
    }


def _log_in(http: httpx.Client) -> bool:
    try:
        answer = http.get("/auth/token")
    except httpx.TransportError:
        return False
    if not answer.is_success:
        return False
    http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
    return True


def _parsed(http: httpx.Client) -> bool:
    errors = http.get("/api/v2/importErrors").json()
    assert not errors["import_errors"], errors
    return {"run", "backfill", "vitrine_marts"} <= {dag["dag_id"] for dag in http.get("/api/v2/dags").json()["dags"]}
