"""Commands as forks of a process that has imported Vitrine: most of the time of a short command is its imports.

Each has a process, an environment, a folder and standard streams of its own, and runs what `python -m vitrine` runs.
What the interpreter reads at its start is that of the server; see `can_run`. So are the command line and the
environment that the system shows: a test of these needs a new process.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
INTERPRETER = ("PYTHON", "LC_", "LANG", "LANGUAGE", "MALLOC_", "LD_")
"""How variables begin that take effect when a process starts."""

MODULES = (
    "vitrine.cli.app",
    "vitrine.cli.running",
    "vitrine.cli.inspection",
    "vitrine.cli.files",
    "vitrine.cli.backends.local",
    "vitrine.cli.backends.remote",
    "vitrine.connectors.postgres.sink",
    "vitrine.connectors.postgres.source",
    "vitrine.runner.worker",
)
"""What most commands import. None of these starts a thread, which a fork would not have."""

MODULES_OF_THE_API = ("vitrine.cli.service", "vitrine.api.server", "vitrine.api.app", "vitrine.console.app")
"""Imported before the first `api`; no other command needs them."""

_MESSAGE_BYTES = 1 << 20
_lock = threading.Lock()


def can_run(env: Mapping[str, str]) -> bool:
    """Whether a fork is the same as a new process: with the same variables of the interpreter."""
    return _of_interpreter(env) == _of_interpreter(os.environ)


class Fork:
    """A command that runs, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, replies: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None  # None: not known to have ended; negative: the number of its signal
        self._replies = replies

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._replies.settimeout(timeout)
            try:
                self.returncode = int(self._replies.recv(100))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("vitrine", timeout or 0) from None
            self._replies.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(arguments: Sequence[str], folder: Path, env: Mapping[str, str], streams: tuple[int, int, int]) -> Fork:
    """Start the command on these file descriptors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        request = json.dumps({"arguments": list(arguments), "folder": str(folder), "env": dict(env)}).encode()
        with _lock:
            socket.send_fds(_server(), [request], [theirs.fileno(), *streams])
    return Fork(int(ours.recv(100)), ours)


def run(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], streams: tuple[int, int, int], seconds: float
) -> int:
    """Run the command on these file descriptors and wait; its exit code, or the negative number of its signal."""
    fork = start(arguments, folder, env, streams)
    try:
        return fork.wait(seconds)
    except subprocess.TimeoutExpired:
        fork.kill()
        fork.wait()
        raise


def _of_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(INTERPRETER)}


@functools.cache
def _server() -> socket.socket:
    """The connection to the server of this process; the server ends when the connection does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.command_server", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


# -- in the server ----------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    _import(MODULES)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not request:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        command = json.loads(request)
        if command["arguments"][:1] == ["api"]:
            _prepare_api()
        if os.fork() == 0:
            requests.close()
            _watch(command, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    _freeze()


@functools.cache
def _prepare_api() -> None:
    """Import it, and have FastAPI analyse its routes, which takes as long."""
    from vitrine.api.app import create_app
    from vitrine.settings import Settings

    _import(MODULES_OF_THE_API)
    create_app(Settings.model_validate({"database_url": "postgresql://vitrine@127.0.0.1:1/none"})).openapi()
    _freeze()


def _freeze() -> None:
    assert threading.active_count() == 1
    gc.freeze()  # otherwise a collection in a fork copies all of its memory


def _watch(request: Mapping[str, Any], reply: int, *streams: int) -> NoReturn:
    """A parent for the command, which reports its process and its end."""
    with socket.socket(fileno=reply) as replies:
        if (pid := os.fork()) != 0:
            for descriptor in streams:
                os.close(descriptor)
            replies.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            replies.send(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
    _become(request, streams)


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """Be the command; the stack above has nothing to do at its end."""
    # sys.stdin, sys.stdout and sys.stderr have not been used, and now reach other files
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.path[0] = str(Path.cwd())
    sys.argv = ["vitrine", *request["arguments"]]
    try:
        runpy.run_module("vitrine", run_name="__main__", alter_sys=True)
        sys.exit()
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            _ended.append((exc.code or 0) & 0xFF)
        raise


_ended: list[int] = []
"""The exit code of the command that this process is, once it is known."""


def _leave() -> None:
    """The last of the functions at exit. What follows frees every object, and so copies the memory of the server."""
    if _ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_ended[0])


if __name__ == "__main__":
    atexit.register(_leave)
    _serve(socket.socket(fileno=int(sys.argv[1])))
