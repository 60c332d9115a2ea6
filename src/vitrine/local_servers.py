"""Accounts and folders of the servers that Vitrine starts on this machine."""

import fcntl
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

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
