"""Settings from files: a `.env` that is trusted or not, and secrets in files of their own."""

import os
import stat
from collections.abc import Collection, Iterable, MutableMapping
from pathlib import Path

from vitrine.errors import ConfigError

DEFAULT = ".env"
"""In the working folder; read without being named, so a part of it is not trusted."""

MARKER = ".vitrine-project"
"""A file of this name marks the folder of a project, whose `.env` is trusted."""

NAMES_CODE = frozenset(
    {"vitrine_transform_modules", "vitrine_testing", "vitrine_failpoints", "vitrine_devserver_cache", "java_home"}
)
"""Settings that choose what code is executed; standing in a folder must not be enough to execute its code."""

SUFFIX = "_file"
MAX_SECRET_BYTES = 64 * 1024


def check_regular(path: Path, what: str) -> None:
    """ConfigError unless the file is a regular one: reading a pipe or a device could take for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"cannot read {what} '{path}': {exc.strerror}", code="NO_FILE") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ConfigError(f"cannot read {what} '{path}': it is {kind}", code="NO_FILE")


def is_project(folder: Path) -> bool:
    """Whether the folder is a project of this user, whose marker and `.env` no other user may write to."""
    return all(_is_own(folder / name) for name in (MARKER, DEFAULT))


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    writable_by_others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & writable_by_others


def refuse_code(variables: Iterable[str], folder: Path) -> None:
    """ConfigError if the `.env` of a folder that is no project names code to execute."""
    named = sorted(name.upper() for name in variables if name.lower() in NAMES_CODE)
    # guarantee: K13
    if named and not is_project(folder):
        raise ConfigError(
            f"{', '.join(named)} in {DEFAULT} chooses code that is executed, and this folder is no project of yours:"
            f" give the file as `vitrine --env-file {DEFAULT} …`, set it in the environment, or run `vitrine init`",
            code="ENV_NOT_TRUSTED",
        )


def read_secrets(variables: MutableMapping[str, str | None], names: Collection[str], nested: Collection[str]) -> None:
    """Replace each `NAME_FILE` of a secret by `NAME` with the content of that file.

    `nested`: beginnings of names that belong to secrets, such as those of sources.
    """
    for variable, given in list(variables.items()):
        name = variable.removesuffix(SUFFIX)
        is_secret = name in names or any(name.startswith(one) and name != one for one in nested)
        # a source may be named `…_file`: then its value is a URL
        if name == variable or not is_secret or not given or "://" in given:
            continue
        if variables.get(name):
            raise ConfigError(
                f"{name.upper()} and {variable.upper()} are both set; remove one of them", code="SETTINGS"
            )
        del variables[variable]
        variables[name] = _read_secret(variable.upper(), Path(given))


def _read_secret(variable: str, path: Path) -> str:
    check_regular(path, f"the file of {variable}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise ConfigError(f"cannot read the file of {variable} '{path}': {exc.strerror}", code="NO_FILE") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of {variable} '{path}' is not UTF-8 text", code="SETTINGS") from None
    if not text or len(content) > MAX_SECRET_BYTES or "\0" in text:
        raise ConfigError(
            f"the file of {variable} '{path}' must hold one value, of at most {MAX_SECRET_BYTES // 1024} KB",
            code="SETTINGS",
        )
    return text
