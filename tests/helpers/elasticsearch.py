"""One Elasticsearch for all processes of a test session, started when the first test asks for it."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx2

from tests.helpers.folders import server_folder
from tests.helpers.waiting import wait_until
from vitrine.errors import VitrineError

SESSION = "VITRINE_TEST_SESSION"
"""Names the folder of the session for the processes of pytest-xdist."""

_DOWNLOAD_SECONDS = 900
_STOP_SECONDS = 30


class Unavailable(Exception):
    """No Elasticsearch can be started here; the text is the reason."""


class Session:
    """Held by the process that the user started: while it lives, so may the server."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="vitrine-session-"))
        self._lock = _held_lock(self._folder / "session")
        os.environ[SESSION] = str(self._folder)

    def close(self) -> None:
        """End the server, if there is one, and wait for that."""
        self._lock.close()
        keeper = self._folder / "keeper"
        if keeper.exists():
            wait_until(lambda: _has_ended(keeper), timeout=_STOP_SECONDS, what="the end of Elasticsearch")
        shutil.rmtree(self._folder, ignore_errors=True)


def shared_url() -> str:
    """The URL of the session's server; Unavailable gives the reason why there is none."""
    folder = Path(os.environ[SESSION])
    with (folder / "starting").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "keeper").exists():
            _start_keeper(folder)
    if (folder / "url").exists():
        return (folder / "url").read_text("utf-8")
    reason = folder / "failure" if (folder / "failure").exists() else folder / "log"
    raise Unavailable(reason.read_text("utf-8", "replace"))


@contextmanager
def temporary_indexes(url: str, prefix: str) -> Generator[None]:
    """Removes every index whose name begins with the prefix, and so its aliases, when the block ends."""
    try:
        yield
    finally:
        with httpx2.Client(base_url=url, trust_env=False, timeout=30) as client:
            found = client.get(f"/_cat/indices/{prefix}*", params={"format": "json", "expand_wildcards": "all"})
            for index in found.raise_for_status().json():
                client.delete(f"/{index['index']}").raise_for_status()


def _held_lock(path: Path) -> IO[str]:
    # a lock of the process: unlike flock it is not inherited by forked children, which may outlive their parent
    file = path.open("w")
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


def _start_keeper(folder: Path) -> None:
    """A process beside the tests owns the server: no process of pytest-xdist lives as long as the session."""
    with (folder / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tests.helpers.elasticsearch", str(folder)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the session, and the end of the session ends the server
            check=True,
        )
    wait_until(
        lambda: (folder / "url").exists() or _has_ended(folder / "keeper"),
        timeout=_DOWNLOAD_SECONDS,
        what="the start of Elasticsearch",
    )


def _keep(folder: Path) -> None:
    """Run the server in a process of its own until the session ends, also by a kill."""
    # tests of an older tree read this module, and that tree has no development server
    from vitrine_devserver import DevServer

    with (folder / "keeper").open("w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)  # the forked process inherits it
        if os.fork() != 0:
            return
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
        threading.Thread(target=_end_with_session, args=[folder], daemon=True).start()
        try:
            with server_folder("vitrine-elasticsearch-") as data, DevServer.start(data, fast=True) as server:
                _publish(folder / "url", server.url)
                signal.pause()
        except VitrineError as exc:
            _publish(folder / "failure", str(exc))


def _end_with_session(folder: Path) -> None:
    with (folder / "session").open("a") as session:
        fcntl.lockf(session, fcntl.LOCK_EX)
    os.kill(os.getpid(), signal.SIGTERM)
    # a killed session cannot remove its folder
    shutil.rmtree(folder, ignore_errors=True)


def _has_ended(keeper: Path) -> bool:
    try:
        with keeper.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _publish(path: Path, text: str) -> None:
    """Readers see the whole text or no file."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text, "utf-8")
    unfinished.rename(path)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
