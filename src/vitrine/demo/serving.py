"""Runs the API and a runner as child processes until Ctrl-C."""

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console

from vitrine.demo import cinema
from vitrine.errors import TransientError, VitrineError
from vitrine.postgres import connect
from vitrine.printable import markup
from vitrine.settings import Settings, child_environment, chosen_env_file

GRACE_SECONDS = 15
POLL_SECONDS = 0.25
NEW_RATINGS_SECONDS = 2.0
NEW_RATINGS = 5
METRICS_PORT = 9464


def serve(
    console: Console, api: Settings, runner: Settings, stop: threading.Event, *, new_ratings: Settings | None = None
) -> None:
    """Run API and runner, each with its own account, until `stop` is set or nothing reads the output any more.

    Then stop them. With `new_ratings`, add ratings to the sample cinema of that database meanwhile.
    """
    settings = api
    port = settings.metrics_port or _free_port(settings.metrics_host)
    children = [Child(api, "api"), Child(runner, "runner", metrics_port=port)]
    try:
        console.print(
            f"\n[bold]Vitrine is up[/]: documentation at http://{markup(settings.api_host)}:{settings.api_port}/docs"
            "  –  press Ctrl-C to stop"
        )
        console.print(
            f"Metrics: http://{markup(settings.api_host)}:{settings.api_port}/metrics for the pipelines,"
            f" http://{markup(settings.metrics_host)}:{port}/metrics for the runner"
        )
        due = time.monotonic() + NEW_RATINGS_SECONDS
        while not stop.wait(POLL_SECONDS) and not output_is_closed():
            _refuse_dead(children)
            if new_ratings is not None and time.monotonic() >= due:
                due = time.monotonic() + NEW_RATINGS_SECONDS
                _add_ratings(new_ratings)
    finally:
        try:
            console.print("Stopping …")
        except (OSError, SystemExit):
            console.quiet = True  # the terminal or the pipe is closed
        finally:
            _end(children)


def output_is_closed() -> bool:
    """Whether the reader of a pipe (`| head`) or the terminal is gone: a write would fail."""
    poll = select.poll()
    poll.register(1, 0)  # errors are always reported
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class Child:
    """A `vitrine` command in a child process."""

    def __init__(self, settings: Settings, command: str, **overrides: object) -> None:
        self.command = command
        chosen = chosen_env_file()
        options = [] if chosen is None else ["--env-file", str(chosen)]
        # in its own session: Ctrl-C reaches only the parent, which then stops its children
        self.process = subprocess.Popen(  # noqa: S603  no argument comes from the user
            [sys.executable, "-m", "vitrine", *options, command],
            env=child_environment(settings, **overrides),
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
