"""Removes one protection after the other in a copy of the code, and expects the test that the table names to fail.

`make mutants` runs the whole table, `python -m tests.mutants.run C1 E6` some entries of it.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.table import ROOT, TABLE, Mutant, load, place, problems, sources, tree_markers

AT_ONCE = 2
MUTANT_SECONDS = 120
UNMODIFIED_SECONDS = 900
GRACE_SECONDS = 30  # an interrupted pytest stops the PostgreSQL that it has started
TESTS_FAILED = 1  # the exit code of pytest

Copies = SimpleQueue[Path]


class Verdict(StrEnum):
    SURVIVED = "SURVIVED"
    KILLED = "killed"
    BROKEN = "BROKEN"  # an error outside the test, for example in a fixture: no proof
    TIMED_OUT = "TIMED OUT"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="entries to run; without any, the whole table")
    parser.add_argument("--table", type=Path, default=TABLE, help="a table in another file")
    options = parser.parse_args(arguments)
    mutants = choose(load(options.table), options.ids)
    if found := problems(mutants):
        sys.exit("\n".join(found))
    with scratch_copies() as copies, ThreadPoolExecutor(AT_ONCE) as pool:
        check_unmodified(pool, sorted({mutant.test for mutant in mutants}))
        verdicts = list(pool.map(judge, mutants, repeat(copies)))
    sys.stdout.write(f"{verdicts.count(Verdict.KILLED)} of {len(mutants)} mutants killed\n")
    return int(set(verdicts) != {Verdict.KILLED})


def choose(mutants: Sequence[Mutant], ids: Sequence[str]) -> list[Mutant]:
    if unknown := set(ids) - {mutant.id for mutant in mutants}:
        sys.exit(f"the table of mutants has no entry {', '.join(sorted(unknown))}")
    return [mutant for mutant in mutants if not ids or mutant.id in ids]


def check_unmodified(pool: ThreadPoolExecutor, tests: Sequence[str]) -> None:
    """A test that fails on the code as it is proves nothing about a mutant."""
    shares = [share for at in range(AT_ONCE) if (share := tests[at::AT_ONCE])]
    for verdict, output in pool.map(run_tests, repeat(ROOT), shares, repeat(UNMODIFIED_SECONDS)):
        if verdict is not Verdict.SURVIVED:
            sys.exit(f"{output}\nthe tests named in the table of mutants must pass on the unmodified code first")


def judge(mutant: Mutant, copies: Copies) -> Verdict:
    with borrowed(copies) as copy, applied(mutant, copy):
        verdict, _ = run_tests(copy, [mutant.test], MUTANT_SECONDS)
    sys.stdout.write(f"{verdict:<9} {mutant.id:<4} {mutant.test}\n")
    sys.stdout.flush()
    return verdict


@contextmanager
def scratch_copies() -> Generator[Copies]:
    """A copy of the source for each worker."""
    with tempfile.TemporaryDirectory(prefix="vitrine-mutants-") as folder:
        copies = Copies()
        for number in range(AT_ONCE):
            copy = Path(folder, str(number))
            for source in sources():
                # with the bytecode: the copies of the files have the times that it was made for
                shutil.copytree(source, copy / source.relative_to(ROOT))
            copies.put(copy)
        yield copies


@contextmanager
def borrowed(copies: Copies) -> Generator[Path]:
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


@contextmanager
def applied(mutant: Mutant, copy: Path) -> Generator[None]:
    """Inside, the copy lacks the protection."""
    marker = place(mutant, tree_markers())
    file = copy / marker.file
    original = file.read_text("utf-8")
    rewrite(file, mutant.applied_to(original, marker))
    try:
        yield
    finally:
        rewrite(file, original)


def rewrite(file: Path, text: str) -> None:
    """The file has this text, and no bytecode: two mutants of one file may have equal times and sizes."""
    file.write_text(text, "utf-8")
    for bytecode in file.parent.glob(f"__pycache__/{file.stem}.*"):
        bytecode.unlink()


def run_tests(root: Path, tests: Sequence[str], limit: float) -> tuple[Verdict, str]:
    """What these tests say about the code below `root`, and the output of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    path = os.pathsep.join(str(source) for source in sources(root))
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return Verdict.TIMED_OUT, interrupt(process)
    return verdict_of(process.returncode, output), output


def interrupt(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def verdict_of(code: int, output: str) -> Verdict:
    if code == 0:
        return Verdict.SURVIVED
    summary = output.splitlines()[-1] if output else ""
    failed = code == TESTS_FAILED and re.search(r"\b\d+ failed\b", summary)
    return Verdict.KILLED if failed else Verdict.BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
