"""An environment for each peer, so that nobody's pins are anybody else's."""

import subprocess
import sys
from pathlib import Path

from bench.stage import RESULTS

PEERS = RESULTS / ".peers"


def ensure(name: str) -> Path:
    """The environment of that peer, made at first use from `peers/<name>.txt`; remade when the pins change."""
    requirements = Path(__file__).parent / f"{name}.txt"
    folder = PEERS / name
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != requirements.read_text(encoding="utf-8"):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)], check=True)
        stamp.write_text(requirements.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def run(command: list[str], environment: dict[str, str], folder: Path | None = None) -> None:
    """One command of a peer, with nothing but what it needs in its environment; its words are kept for a failure."""
    finished = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        words = (finished.stdout + finished.stderr)[-2000:]
        raise RuntimeError(f"{Path(command[0]).name} ended with {finished.returncode}:\n{words}")
