"""One Elasticsearch on this machine, owned by this process."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from vitrine.embedded import Account, FolderLock, ServerKind, allow_traversal, change_owner, unprivileged_account
from vitrine.errors import ConfigError
from vitrine_devserver import distribution, java, launch, settings, thai
from vitrine_devserver.distribution import VERSION, Report
from vitrine_devserver.java import Java

HOST = "127.0.0.1"
_START_SECONDS = 180
_STOP_SECONDS = 20
_POLL_SECONDS = 0.1
_KIND = ServerKind(
    "Elasticsearch",
    "the development Elasticsearch",
    other_folder="name another folder",
    instead="set VITRINE_ELASTICSEARCH_URL to a server of your own",
)
_KIND_OF_CACHE = _KIND._replace(other_folder="name it in VITRINE_DEVSERVER_CACHE")
_SETTINGS = {
    "cluster.name": "vitrine-devserver",
    "node.name": "vitrine-devserver",
    "node.portsfile": "true",
    "discovery.type": "single-node",
    "xpack.security.enabled": "false",
    "http.host": HOST,
    "transport.host": HOST,
    "transport.port": "0",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
    "action.auto_create_index": "false",
}


class DevServer:
    """A single-node Elasticsearch without a password, reachable from this machine only; for development and tests."""

    title: ClassVar[str] = "Elasticsearch"
    default_port: ClassVar[int] = 9200
    url_variable: ClassVar[str] = "VITRINE_ELASTICSEARCH_URL"

    def __init__(self, folder: Path, *, temporary: bool) -> None:
        self.folder = folder
        self.port = 0
        self._temporary = temporary
        self._lock = FolderLock(_KIND, folder)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, folder: Path | None = None, port: int = 0, report: Report = lambda text: None, *, fast: bool = False
    ) -> Self:
        """Start a server and wait until it answers; without a folder its data is removed when it stops.

        A fast server starts in half the time and then works slower: for tests.
        """
        configured = settings.load()
        _check_port(port)
        home = distribution.install(configured.folder, report)
        server = cls._in_folder(folder)
        try:
            server._bring_up(home, configured.java_home, port, fast=fast)
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process of the server; None if it was stopped."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "elasticsearch.log"

    def stop(self) -> None:
        """Stop the server; kill it if it does not stop in time."""
        if self._process is not None:
            _shut_down(self._process)
            self._process = None
        self._lock.release()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @classmethod
    def _in_folder(cls, folder: Path | None) -> Self:
        if folder is None:
            return cls(Path(tempfile.mkdtemp(prefix="vitrine-elasticsearch-")).resolve(), temporary=True)
        if "," in str(folder.absolute()):
            # path.data is a list
            raise ConfigError(f"Elasticsearch cannot use {folder}: the path has a comma", code="FOLDER")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise _unusable(folder, exc) from exc
        return cls(folder.resolve(), temporary=False)

    def _bring_up(self, home: Path, java_home: Path | None, port: int, *, fast: bool) -> None:
        try:
            self._lock.take()
            account = self._account()
            self._prepare(account)
        except OSError as exc:
            raise _unusable(self.folder, exc) from exc
        if account is not None:
            allow_traversal(_KIND_OF_CACHE, account, home, home, home.parent)
        self._launch(home, java.choose(java_home, account), account, port, fast=fast)
        self._wait_until_ready()

    def _account(self) -> Account | None:
        """Elasticsearch refuses to run as root: the owner of existing data runs it then. None: run it as this user."""
        if os.geteuid() != 0:
            return None
        data = self.folder / "data"
        if data.exists() and data.stat().st_uid != 0:
            owner = data.stat()
            return Account(owner.st_uid, owner.st_gid)
        return unprivileged_account(_KIND)

    def _prepare(self, account: Account | None) -> None:
        for name in ("config", "data", "logs", "tmp"):
            folder = self.folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            change_owner(_KIND, folder, account)
        logging = self.folder / "config" / "log4j2.properties"
        logging.write_text(launch.LOGGING, encoding="ascii")
        change_owner(_KIND, logging, account)
        self._ports_file.unlink(missing_ok=True)
        if account is not None:
            allow_traversal(_KIND, account, self.folder, self.folder)

    def _launch(self, home: Path, chosen: Java, account: Account | None, port: int, *, fast: bool) -> None:
        temporary = self.folder / "tmp"
        boundaries = self._thai_boundaries(account) if chosen.bundled else None
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 – a checked Java, no shell
                launch.command(chosen.program, temporary, boundaries, fast=fast),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=home,
                env={"LC_ALL": "C.UTF-8", "LIBFFI_TMPDIR": str(temporary)},
                start_new_session=True,  # Ctrl-C reaches the owner only, who then stops the server
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        node = _SETTINGS | {
            "path.home": str(home),
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "http.port": str(port),
        }
        assert self._process.stdin is not None  # noqa: S101 – it is a pipe
        # a server that died at once has closed the pipe; waiting for it reports the reason
        with suppress(BrokenPipeError):
            self._process.stdin.write(launch.server_arguments(node, self.folder / "config"))
            self._process.stdin.flush()

    def _thai_boundaries(self, account: Account | None) -> Path:
        """The Java in the wheel has no data of Thai."""
        path = self.folder / "config" / "thai.jar"
        thai.write_provider(path)
        change_owner(_KIND, path, account)
        return path

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if not self.is_running:
                raise self._failed("did not start")
            if time.monotonic() > deadline:
                raise self._failed(f"did not answer within {_START_SECONDS} s")
            time.sleep(_POLL_SECONDS)

    def _is_ready(self) -> bool:
        with suppress(FileNotFoundError, ValueError):
            self.port = int(self._ports_file.read_text(encoding="ascii").split()[0].rpartition(":")[2])
        return self.port != 0 and _health(self.port) in ("yellow", "green")

    @property
    def _ports_file(self) -> Path:
        return self.folder / "logs" / "http.ports"

    def _failed(self, what: str) -> ConfigError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        # the last cause of an exception is its reason; a JVM that does not start writes two lines
        causes = [line for line in lines if line.startswith(("java.", "Caused by:"))][-1:] or lines[-2:]
        reason = f": {' '.join(line.strip() for line in causes)}" if causes else ""
        kept = "" if self._temporary else f" (see {self.log})"
        return ConfigError(f"Elasticsearch {VERSION} {what}{reason}{kept}", code="DEVSERVER_FAILED")


def _check_port(port: int) -> None:
    """A port in use is reported before anything is downloaded."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise ConfigError(
                f"port {port} of {HOST} cannot be used ({exc.strerror}): stop the program that uses it, or give"
                " another port; 0 chooses a free one",
                code="PORT_IN_USE",
            ) from exc


def _health(port: int) -> str | None:
    """The status of the cluster; None while nothing answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=20s")
        return json.loads(connection.getresponse().read()).get("status")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _shut_down(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None  # noqa: S101 – it is a pipe
    with suppress(BrokenPipeError):
        process.stdin.write(launch.SHUTDOWN)
        process.stdin.flush()
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unusable(folder: Path, exc: OSError) -> ConfigError:
    return ConfigError(
        f"Elasticsearch cannot keep its data in {folder}: {exc.strerror}; {_KIND.other_folder}", code="FOLDER"
    )
