"""Starts and stops Vitrine as real processes and reads their output."""

import itertools
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.helpers import command_server
from tests.helpers.command_server import Fork

GRACE_SECONDS = 20
SERVICES = ("api", "runner")
QUICK = {"VITRINE_LEASE_TTL": "2s", "VITRINE_HEARTBEAT_INTERVAL": "300ms", "VITRINE_POLL_INTERVAL": "200ms"}


@dataclass(frozen=True)
class Started:
    """A command in a separate process; its output goes to a file."""

    process: subprocess.Popen[bytes] | Fork
    log: Path

    @property
    def name(self) -> str:
        """The name of a runner in the store."""
        return f"{socket.gethostname()}:{self.process.pid}"

    def output(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(GRACE_SECONDS)


# Below the ports that the kernel gives to outgoing connections: such a connection could take a port between the answer
# of `free_port` and the start of the server. Processes of tests begin at different ones.
_PORTS = range(15_000, 32_000)
_next_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port of this machine that nothing listens on, and that this process has not returned before."""
    for number in itertools.islice(_next_ports, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is in use")


def environment(url: str | None, **variables: str) -> dict[str, str]:
    """The environment of this process without settings of Vitrine, plus these variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINE_", "DATABASE_URL"))}
    database = {} if url is None else {"VITRINE_DATABASE_URL": url}
    return {**inherited, "COLUMNS": "200", **database, **variables}


@contextmanager
def started(arguments: Sequence[str], folder: Path, env: dict[str, str], *, new: bool = False) -> Generator[Started]:
    """Runs `vitrine …` until the block ends, then sends SIGTERM, and SIGKILL if it does not exit.

    A service is a fork of a process that has imported Vitrine, unless the test needs a `new` process, for example to
    read its environment in /proc.
    """
    log = folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log"
    with log.open("wb") as output:
        process: subprocess.Popen[bytes] | Fork
        if arguments[0] in SERVICES and not new and command_server.can_run(env):
            with Path(os.devnull).open("rb") as nothing:
                process = command_server.start(
                    arguments, folder, env, (nothing.fileno(), output.fileno(), output.fileno())
                )
        else:
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
def runner(url: str, folder: Path, *, concurrency: int = 4, **variables: Any) -> Generator[Started]:
    """Runs a runner with a short lease."""
    env = environment(url, **(QUICK | variables))
    with started(["runner", "--concurrency", str(concurrency)], folder, env) as one:
        yield one


def answered(arguments: Sequence[str], answer: str, *, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Runs one command in a terminal, types the answer, and waits; its exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vitrine", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    typed = False
    # a closed terminal is an error on Linux: the process has ended
    with suppress(OSError):
        while part := os.read(ours, 4096):
            shown += part
            if not typed and b"]: " in shown:
                os.write(ours, answer.encode())
                typed = True
    os.close(ours)
    return process.wait(GRACE_SECONDS), shown.decode().replace("\r\n", "\n")


def vitrine(
    *arguments: str, folder: Path, env: dict[str, str], standard_input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs one command and waits for it."""
    command = [sys.executable, "-m", "vitrine", *arguments]
    if not command_server.can_run(env):
        return subprocess.run(
            command, cwd=folder, env=env, input=standard_input, capture_output=True, text=True, timeout=120, check=False
        )
    with TemporaryFile("w+") as given, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        given.write(standard_input)
        given.seek(0)
        streams = given.fileno(), output.fileno(), errors.fileno()
        code = command_server.run(arguments, folder, env, streams, seconds=120)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.read())
