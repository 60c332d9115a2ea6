"""`python -m bench.child`: one run in a process of its own, which tells its seconds and its peak memory."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import ours
from bench.database import Database
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import pipelines


@dataclass(frozen=True)
class Told:
    seconds: float
    peak_mb: float


def run(settings: Settings, name: str) -> Told:
    """Run the pipeline of that name in a new process, heartbeat and all."""
    arguments = {
        "name": name,
        "database_url": settings.store_url,
        "sources": {"cinema": settings.source_url("cinema")},
        "transform_modules": list(settings.transform_modules),
    }
    finished = subprocess.run(
        [sys.executable, "-m", "bench.child"],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    if finished.returncode:
        raise RuntimeError(f"the run of '{name}' failed:\n{finished.stderr}")
    return Told(**json.loads(finished.stdout))


def main() -> None:
    arguments = json.load(sys.stdin)
    name = arguments.pop("name")
    settings = Settings.model_validate(arguments)
    with connect(settings.store_url, name="bench") as connection:
        pipeline = pipelines.get(connection, name)
        executed = ours.run(Database(settings.store_url, connection), settings, pipeline)
    json.dump({"seconds": executed.seconds, "peak_mb": _peak_mb()}, sys.stdout)


def _peak_mb() -> float:
    """VmHWM: the most memory that this process ever held at once."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


if __name__ == "__main__":
    main()
