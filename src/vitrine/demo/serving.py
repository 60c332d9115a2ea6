"""Runs the API and a runner as child processes until Ctrl-C."""

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
NEW_RATINGS_SECONDS = 2.0
NEW_RATINGS = 5
METRICS_PORT = 9464


def serve(console: Console, settings: Settings, *, trickle: bool) -> None:
    """Run API and runner until SIGINT or SIGTERM, then stop them; with `trickle`, add new ratings meanwhile."""
    stop = threading.Event()
    _stop_on_signals(stop)
    port = settings.metrics_port or _free_port(settings.metrics_host)
    children = [Child(settings, "api"), Child(settings, "runner", metrics_port=port)]
    try:
        console.print(
            f"\n[bold]Vitrine is up[/]: documentation at http://{settings.api_host}:{settings.api_port}/docs"
            "  –  press Ctrl-C to stop"
        )
        console.print(
            f"Metrics: http://{settings.api_host}:{settings.api_port}/metrics for the pipelines,"
            f" http://{settings.metrics_host}:{port}/metrics for the runner"
        )
        while not stop.wait(NEW_RATINGS_SECONDS):
            _refuse_dead(children)
            if trickle:
                _add_ratings(settings)
    finally:
        console.print("Stopping …")
        _end(children)


class Child:
    """A `vitrine` command in a child process."""

    def __init__(self, settings: Settings, command: str, **overrides: object) -> None:
        self.command = command
        # in its own session: Ctrl-C reaches only the parent, which then stops its children
        self.process = subprocess.Popen(  # noqa: S603  no argument comes from the user
            [sys.executable, "-m", "vitrine", command],
            env=child_environment(settings.store_url, **overrides),
            start_new_session=True,
        )


def _free_port(host: str) -> int:
    """The default port for metrics, or any free port if another process has it."""
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
            raise VitrineError(f"`vitrine {child.command}` ended with exit code {code}; see its log lines above")


def _add_ratings(settings: Settings) -> None:
    try:
        with connect(settings.store_url, name="vitrine:new-ratings") as connection:
            cinema.add_ratings(connection, NEW_RATINGS)
    except TransientError:
        return  # the database is unavailable for a moment; the next call adds ratings again


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
