"""A tree of Vitrine, used only through its command line: migrate, apply, run, runner, api."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench import ratings
from bench.server import HOME

ROOT = Path(__file__).parent.parent
SOURCE = "bench"
"""The name of the source connection in every definition."""

WORK = HOME / "work"
"""The working directory of every command: it holds no .env file."""

Definition = Mapping[str, Any]
"""A pipeline as in a YAML file."""

STOP_SECONDS = 30


class CommandFailed(Exception):
    """A command of a tree ended with an error; the message holds its last output."""


@dataclass(frozen=True)
class Measurement:
    seconds: float
    peak_mb: float | None = None  # None: not measured
    processor_seconds: float | None = None  # of the process of the run, without the servers


@dataclass(frozen=True)
class Tree:
    """A checkout and the Python of its environment."""

    name: str
    folder: Path
    python: Path

    @classmethod
    def at(cls, name: str, folder: Path) -> "Tree":
        """The tree in that folder; CommandFailed when its environment is missing or belongs to another tree."""
        tree = cls(name, folder.resolve(), folder.resolve() / ".venv" / "bin" / "python")
        if not tree.python.exists():
            raise CommandFailed(f"{tree.folder} has no environment: run `make check` there first")
        imported = tree.call([str(tree.python), "-P", "-c", "import vitrine; print(vitrine.__file__)"], {}).strip()
        if not Path(imported).resolve().is_relative_to(tree.folder):
            raise CommandFailed(
                f"the environment of {tree.folder} imports vitrine from {imported}:"
                " remove its .venv and run `make check` there"
            )
        return tree

    def revision(self) -> str:
        """The commit, with `+` when files differ from it; `unknown` outside a repository."""
        described = subprocess.run(
            ["git", "-C", str(self.folder), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        )
        return described.stdout.strip() or "unknown"

    def call(self, command: Sequence[str], environment: Mapping[str, str], ends_with: int = 0) -> str:
        """Run a command to its end and return its output; CommandFailed when it ends with another exit code."""
        with self.start(command, environment) as process:
            output, errors = process.communicate()
        check_end(command, process.returncode, output + errors, ends_with)
        return output

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start a process that gets these variables and none of this process."""
        WORK.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            command,
            env={"PATH": "/usr/bin:/bin", "HOME": str(WORK), "LANG": "C.UTF-8", **environment},
            cwd=WORK,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
        )


def this_tree() -> Tree:
    return Tree("new", ROOT, Path(sys.executable))


def check_end(command: Sequence[str], code: int, output: str, expected: int = 0) -> None:
    if code != expected:
        raise CommandFailed(f"`{' '.join(command)}` ended with {code}:\n{output[-2000:].strip()}")


@dataclass(frozen=True)
class Installation:
    """A tree with the database of its store and marts, and the database it reads from."""

    tree: Tree
    store_url: str
    source_url: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # further environment variables

    def command(self, *arguments: str, ends_with: int = 0) -> str:
        """`vitrine <arguments>` as a process with this exit code; returns its output."""
        return self.tree.call(self._vitrine(*arguments), self._environment(), ends_with)

    def migrate(self) -> None:
        self.command("migrate")

    def apply(self, *definitions: Definition, reset: bool = False) -> None:
        """Create or change pipelines; `reset` makes the next run of each a first one, if its target is dropped."""
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            for definition in definitions:
                text = yaml.safe_dump({"source": SOURCE, **definition})
                Path(folder, f"{definition['name']}.yaml").write_text(text, encoding="utf-8")
            self.command("apply", folder, *(("--state", "reset") if reset else ()))

    def apply_timed(self, definition: Definition, *, reset: bool = False) -> None:
        """The same for a pipeline that `timed_run` is to run: it needs a second one for its warm-up."""
        self.apply(definition, warm_up_of(definition), reset=reset)

    def timed_run(self, name: str, *arguments: str, before: Callable[[], object] = lambda: None) -> Measurement:
        """Run a pipeline in a process of its own; `before` is called when that process is ready to start the run.

        With arguments, another command and its options, such as `reconcile`, `--deep`.
        """
        command = [str(self.tree.python), "-P", "-m", "bench.timed_run", name, *arguments]
        with self.tree.start(command, self._environment()) as process:
            ready = process.stdout.readline() if process.stdout else ""
            if ready:
                before()
            output, errors = process.communicate("start\n" if ready else None)
        check_end(command, process.returncode, output + errors)
        return Measurement(**json.loads(output))

    @contextmanager
    def service(self, *arguments: str, **settings: object) -> Generator[subprocess.Popen[str]]:
        """`vitrine runner` or `vitrine api`, stopped at the end with SIGTERM."""
        environment = self._environment() | {f"VITRINE_{name.upper()}": str(value) for name, value in settings.items()}
        # without pipes for its output: nothing reads them, and a full pipe would block the service
        with self.tree.start(self._vitrine(*arguments), environment, subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _vitrine(self, *arguments: str) -> list[str]:
        return [str(self.tree.python), "-P", "-m", "vitrine", *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(ROOT),  # for bench.transforms and bench.timed_run
            "VITRINE_DATABASE_URL": self.store_url,
            f"VITRINE_SOURCES__{SOURCE.upper()}": self.source_url,
            "VITRINE_ALLOWED_SOURCE_SCHEMAS": ratings.SCHEMA,
            "VITRINE_TRANSFORM_MODULES": "bench.transforms",
            "VITRINE_LOG_LEVEL": "error",
            **self.settings,
        }


def warm_up_of(definition: Definition) -> Definition:
    """A pipeline of the same kind over a few rows: its run needs the same modules."""
    kept = {name: definition[name] for name in ("mode", "python_task") if name in definition}
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if "incremental_key" in definition else {}
    return {
        "name": f"{definition['name']}_warm_up",
        "source_query": ratings.query(ratings.WARM_UP_TABLE),
        "target_table": f"{definition['target_table']}_warm_up",
        "key_columns": ["id"],
        **kept,
        **cursor,
    }
