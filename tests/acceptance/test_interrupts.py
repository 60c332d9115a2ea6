"""Ctrl-C, a closed terminal and a closed pipe: nothing keeps running, and the command says what becomes of the work."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.helpers.processes import GRACE_SECONDS, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.postgres import Connection
from vitrine.store import history, pipelines

RATINGS = """\
name: ratings
source_query: SELECT id, film_id, rating FROM ugc.ratings
target_table: analytics.ratings
key_columns: [id]
batch_size: 1
options: {pause_between_batches: 20ms}
"""
UP = [sys.executable, "-m", "vitrine", "up", "--films", "30", "--ratings", "100"]
READY = b"press Ctrl-C to stop"


def descendants(pid: int) -> set[int]:
    """A process and everything that it started, alive now."""
    found = {pid}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found |= descendants(int(entry.parent.name))
    return found


def postmaster(home: Path) -> int:
    return int((home / "postgres" / "data" / "postmaster.pid").read_text().split("\n")[0])


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def take_terminal(terminal: int) -> None:
    """In the child: its own session, with this as its controlling terminal, which sends SIGHUP when it closes."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("how", ["a closed terminal", "a closed pipe", "SIGHUP"])
def test_up_stops_whole(how: str, tmp_path: Path) -> None:
    env = environment(None, VITRINE_API_PORT=str(free_port()), VITRINE_HOME=str(tmp_path / "home"), COLUMNS="200")
    if how == "a closed terminal":
        ours, theirs = pty.openpty()
        one = subprocess.Popen(
            UP,
            cwd=tmp_path,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: take_terminal(theirs),
        )
        os.close(theirs)
    else:
        ours, theirs = os.pipe()
        one = subprocess.Popen(UP, cwd=tmp_path, env=env, stdout=theirs, stderr=subprocess.DEVNULL)
        os.close(theirs)
    shown = b""
    while READY not in shown:
        part = os.read(ours, 4096)
        assert part, shown
        shown += part
    started_by_it = {*descendants(one.pid), postmaster(tmp_path / "home")}
    assert len(started_by_it) >= 4  # the command, API, runner and PostgreSQL
    if how == "SIGHUP":
        one.send_signal(signal.SIGHUP)
    else:
        os.close(ours)
    try:
        one.wait(GRACE_SECONDS * 2)
    finally:
        one.terminate()  # after a failure, nothing is left for the next test
    wait_until(lambda: not [pid for pid in started_by_it if is_alive(pid)], what="the end of every process")


def test_up_survives_a_closed_terminal_under_nohup(database_url: str, tmp_path: Path) -> None:
    env = environment(database_url, VITRINE_API_PORT=str(free_port()))
    output = tmp_path / "up.log"
    with output.open("wb") as log:
        one = subprocess.Popen(
            UP,
            cwd=tmp_path,
            env=env,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
    try:
        wait_until(lambda: "API at" in output.read_text(), what="a running API", timeout=60)
        one.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(1)
    finally:
        one.terminate()
        one.wait(GRACE_SECONDS)


@pytest.fixture
def ratings(database_url: str, connection: Connection, tmp_path: Path) -> Connection:
    """A pipeline whose run takes long enough to be interrupted."""
    (tmp_path / "ratings.yaml").write_text(RATINGS)
    done = vitrine("apply", "ratings.yaml", folder=tmp_path, env=environment(database_url))
    assert done.returncode == 0, done
    return connection


def has_rows(connection: Connection) -> bool:
    pipeline = pipelines.get(connection, "ratings")
    return any(run.rows_read for run in history.list_runs(connection, pipeline.id))


@pytest.mark.parametrize(
    ("options", "announced", "left"),
    [
        ([], "the next free runner, or `vitrine run ratings`, then continues it", Status.RUN_REQUESTED),
        (["--on-interrupt", "pause"], "it is then PAUSED until `vitrine resume ratings`", Status.PAUSED),
    ],
)
def test_ctrl_c_says_what_becomes_of_the_run(
    ratings: Connection, database_url: str, tmp_path: Path, options: list[str], announced: str, left: Status
) -> None:
    with started(["run", "ratings", *options], tmp_path, environment(database_url)) as one:
        wait_until(lambda: has_rows(ratings))
        assert one.stop(signal.SIGINT) == 3
    assert announced in one.output()
    assert pipelines.get(ratings, "ratings").status is left
    assert one.output().rstrip().endswith("where this one stopped." if not options else "where this run stopped.")


def test_a_second_ctrl_c_ends_the_run_at_once(ratings: Connection, database_url: str, tmp_path: Path) -> None:
    # a locked target keeps the first batch from ending
    ratings.execute("CREATE TABLE analytics.ratings (id uuid PRIMARY KEY, film_id uuid, rating numeric)")
    with ratings.transaction():
        ratings.execute("LOCK TABLE analytics.ratings")
        with started(["run", "ratings"], tmp_path, environment(database_url)) as one:
            running = "SELECT FROM etl.etl_pipelines WHERE status = 'RUNNING'"
            wait_until(lambda: ratings.execute(running).fetchall())
            one.process.send_signal(signal.SIGINT)
            wait_until(lambda: "Ctrl-C again" in one.output())
            one.process.send_signal(signal.SIGINT)
            assert one.process.wait(GRACE_SECONDS) == 130
    assert "ended at once" in one.output()


IMPORTING = """
import importlib.abc, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this in the background
sys.argv = ["vitrine", "list"]
from vitrine.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "vitrine.cli.app", "vitrine.postgres", "vitrine.operations.definitions"])
def test_ctrl_c_ends_a_command_without_a_traceback_while_it_starts(
    database_url: str, tmp_path: Path, module: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING.format(module=module)],
        cwd=tmp_path,
        env=environment(database_url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
