"""API and runner as processes of their own, watched over until Ctrl-C."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from rich.console import Console

from vitrine.demo import cinema
from vitrine.errors import TransientError, VitrineError
from vitrine.postgres import connect
from vitrine.settings import Settings, child_environment

GRACE_SECONDS = 15
TRICKLE_SECONDS = 2.0
TRICKLE_ROWS = 5
METRICS_PORT = 9464


def serve(console: Console, settings: Settings, *, trickle: bool) -> None:
    """Keep API and runner up, and new ratings coming, until SIGINT or SIGTERM; then stop them in order."""
    stop = threading.Event()
    _stop_on_signals(stop)
    port = settings.metrics_port or _free_port(settings.metrics_host)
    children = [Child(settings, "api"), Child(settings, "runner", metrics_port=port)]
    try:
        console.print(
            f"\n[bold]Vitrine is up[/]: documentation at http://{settings.api_host}:{settings.api_port}/docs"
            "  –  Ctrl-C stops it"
        )
        console.print(
            f"Metrics: http://{settings.api_host}:{settings.api_port}/metrics of the marts,"
            f" http://{settings.metrics_host}:{port}/metrics of the runner"
        )
        while not stop.wait(TRICKLE_SECONDS):
            _refuse_dead(children)
            if trickle:
                _add_ratings(settings)
    finally:
        console.print("Stopping …")
        _end(children)


class Child:
    """A command of ours in a process of its own."""

    def __init__(self, settings: Settings, command: str, **said: object) -> None:
        self.command = command
        # a session of its own: Ctrl-C reaches this process only, which then stops the others in order
        self.process = subprocess.Popen(  # noqa: S603  nothing in it comes from outside
            [sys.executable, "-m", "vitrine", command],
            env=child_environment(settings.store_url, **said),
            start_new_session=True,
        )


def _free_port(host: str) -> int:
    """The usual port of metrics, or any other where that one is taken."""
    for port in (METRICS_PORT, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return probe.getsockname()[1]
    return METRICS_PORT


def _stop_on_signals(stop: threading.Event) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _refuse_dead(children: Sequence[Child]) -> None:
    for child in children:
        if (code := child.process.poll()) is not None:
            raise VitrineError(f"`vitrine {child.command}` ended with exit code {code}")


def _add_ratings(settings: Settings) -> None:
    try:
        with connect(settings.store_url, name="vitrine:trickle") as connection:
            cinema.add_ratings(connection, TRICKLE_ROWS)
    except TransientError:
        return  # the database is restarting; the next trickle comes soon


def _end(children: Sequence[Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
