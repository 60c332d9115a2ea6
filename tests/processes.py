"""Vitrine as real processes: started, listened to, and stopped again."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 20
QUICK = {"VITRINE_LEASE_TTL": "2s", "VITRINE_HEARTBEAT_INTERVAL": "300ms", "VITRINE_POLL_INTERVAL": "200ms"}


@dataclass(frozen=True)
class Started:
    """A command in a process of its own; what it says goes to a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        """As a runner calls itself in the store."""
        return f"{socket.gethostname()}:{self.process.pid}"

    def output(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(GRACE_SECONDS)


def environment(url: str | None, **variables: str) -> dict[str, str]:
    """Ours without any setting of Vitrine, then these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINE_", "DATABASE_URL"))}
    database = {} if url is None else {"VITRINE_DATABASE_URL": url}
    return {**inherited, "COLUMNS": "200", **database, **variables}


@contextmanager
def started(arguments: Sequence[str], folder: Path, env: dict[str, str]) -> Generator[Started]:
    """`vitrine …` until the block ends; SIGTERM then, and SIGKILL for one that does not listen."""
    log = folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "vitrine", *arguments], cwd=folder, env=env, stdout=output, stderr=output
        )
    try:
        yield Started(process, log)
    finally:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def runner(url: str, folder: Path, *, concurrency: int = 4, **variables: str) -> Generator[Started]:
    """A runner with a short lease."""
    env = environment(url, **(QUICK | variables))
    with started(["runner", "--concurrency", str(concurrency)], folder, env) as one:
        yield one


def vitrine(*arguments: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One command from start to end."""
    command = [sys.executable, "-m", "vitrine", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


class Forwarder:
    """A port that leads to another one; nobody listens on it before `open`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))  # taken, but refusing
        self.port: int = self._listener.getsockname()[1]

    def open(self) -> None:
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
