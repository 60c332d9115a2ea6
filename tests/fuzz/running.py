"""Starts API and runner on a database of their own, and schemathesis against them."""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from tests.helpers import processes, scraping
from tests.helpers.waiting import wait_until

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


@contextmanager
def served(url: str, folder: Path) -> Generator[str]:
    """API and runner as processes on a migrated database; the address of the API."""
    port = processes.free_port()
    environment = processes.environment(url, VITRINE_API_PORT=str(port), **processes.QUICK)
    address = f"http://127.0.0.1:{port}"
    with processes.started(["api"], folder, environment) as api, processes.runner(url, folder):
        wait_until(lambda: scraping.answers(f"{address}/health/live"), 60, "the API answers")
        yield address
        assert api.process.poll() is None, api.output()


PHASES = {"examples,coverage,fuzzing": 0.6, "stateful": 0.4}
"""In two runs, each with its part of the time: otherwise a slow machine does not get to the last phase."""


def fuzz(
    address: str, folder: Path, *, seconds: int, seed: int | None = None, token: str | None = None, reader: str = ""
) -> list[str]:
    """schemathesis with all phases and checks; the reports of those that found something.

    It sends `token`, and the OpenAPI document is read with the token `reader`, which an API without tokens ignores.
    """
    document = folder / "openapi.json"
    with urlopen(Request(f"{address}/openapi.json", headers={"Authorization": f"Bearer {reader}"})) as answer:
        document.write_bytes(answer.read())
    more = [f"--header=Authorization: Bearer {token}"] if token else []
    if not reader:
        more += ["--exclude-path-regex=/tokens"]  # the first token that it creates would end its work
    finished = [
        _run(address, folder, phases, max(5, round(seconds * part)), seed, more) for phases, part in PHASES.items()
    ]
    return [one.stdout + one.stderr for one in finished if one.returncode]


def _run(
    address: str, folder: Path, phases: str, seconds: int, seed: int | None, more: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        f"--config-file={CONFIGURATION}",
        "run",
        "openapi.json",
        f"--url={address}",
        f"--phases={phases}",
        "--checks=all",
        f"--max-time={seconds}",
        "--workers=1",  # with threads, a defect of Python 3.11 in ast.parse stops hypothesis
        "--continue-on-failure",
        "--request-timeout=30",
        "--output-truncate=false",
        "--no-color",
        *([f"--seed={seed}"] if seed is not None else []),
        *more,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds * 3 + 120, check=False)
