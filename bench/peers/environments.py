"""A Python environment for each peer, because their pinned requirements conflict."""

import subprocess
import sys
from pathlib import Path

from bench.server import RESULTS

PEERS = RESULTS / ".peers"


def ensure(name: str) -> Path:
    """The environment of that peer, created at first use from `peers/<name>.txt` and again when the pins change."""
    requirements = Path(__file__).parent / f"{name}.txt"
    folder = PEERS / name
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != requirements.read_text(encoding="utf-8"):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)], check=True)
        stamp.write_text(requirements.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def run(command: list[str], environment: dict[str, str], folder: Path | None = None) -> str:
    """The output of a command of a peer with only these variables; the error of a failure holds its last output."""
    finished = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        output = (finished.stdout + finished.stderr)[-2000:]
        raise RuntimeError(f"{Path(command[0]).name} ended with {finished.returncode}:\n{output}")
    return finished.stdout
