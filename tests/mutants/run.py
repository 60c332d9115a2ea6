"""Proves the guards: each patch takes one protection away, and the test it names must then fail.

A patch begins with a line `# test: <pytest id>`. `make mutants` runs all, `python -m tests.mutants.run C1 E6` some.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TEST_FAILED = 1  # what pytest answers when a test failed; anything else is not a proof


def main(wanted: list[str]) -> int:
    patches = sorted(FOLDER.glob("*.patch"))
    if unknown := set(wanted) - {patch.stem for patch in patches}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [patch for patch in patches if not wanted or patch.stem in wanted]
    if run(ROOT, *sorted({test_of(patch) for patch in chosen})):
        sys.exit("the tests named by the mutants do not pass as they are: nothing can be proven")
    survivors = [patch.stem for patch in chosen if not killed(patch)]
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed\n")
    if survivors:
        sys.stdout.write(f"survived: {', '.join(survivors)}\n")
    return len(survivors)


def killed(patch: Path) -> bool:
    """Whether the named test fails with the patch."""
    test = test_of(patch)
    with tempfile.TemporaryDirectory(prefix="vitrine-mutant-") as name:
        copy = Path(name)
        for part in ("src", "tests", "docs", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        applied = subprocess.run(["git", "apply", str(patch)], cwd=copy, capture_output=True, text=True, check=False)
        if applied.returncode:
            sys.exit(f"{patch.name} does not apply any more: {applied.stderr}")
        outcome = run(copy, test)
    sys.stdout.write(f"{'killed  ' if outcome == TEST_FAILED else 'SURVIVED'} {patch.stem:<6} {test}\n")
    sys.stdout.flush()
    return outcome == TEST_FAILED


def run(copy: Path, *tests: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    path = {"PYTHONPATH": str(copy / "src"), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    return subprocess.run(command, cwd=copy, env=path, capture_output=True, check=False).returncode


def test_of(patch: Path) -> str:
    first = patch.read_text("utf-8").splitlines()[0]
    if not first.startswith("# test: "):
        sys.exit(f"{patch.name} does not name its test in the first line")
    return first.removeprefix("# test: ").strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
