"""The tour of the README, executed as it stands there."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import scraping
from tests.helpers.folders import open_folder
from tests.helpers.processes import environment, free_port, started
from tests.helpers.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def clone() -> Iterator[Path]:
    """A folder like a clone, with its environment in .venv; the path is short, as a socket needs it."""
    with open_folder("tour-", parent="/tmp") as folder:
        (folder / ".venv").symlink_to(sys.prefix)
        yield folder


def documents(text: str) -> Iterator[Any]:
    """Every indented JSON document in the output."""
    for found in re.finditer(r"^\{\n.*?^\}$", text, re.MULTILINE | re.DOTALL):
        yield json.loads(found[0])


def test_the_tour_works_pasted_as_one_block(clone: Path) -> None:
    section = README.read_text("utf-8").partition("## Your first pipeline\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    port = free_port()
    assert block.count("http://127.0.0.1:8000") == 1
    block = block.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{port}")
    served = environment(None, VITRINE_API_PORT=str(port))
    with started(["up", "--films", "100", "--ratings", "3000"], clone, served) as up:
        wait_until(lambda: scraping.answers(f"http://127.0.0.1:{port}/health"), 120, "the API and its runner answer")
        finished = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail"],
            input=block,
            cwd=clone,
            env=environment(None),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr + up.output()
    output = finished.stdout
    shown = list(documents(output))
    assert not [one for one in shown if one.get("type") == "about:blank"], output
    created, request, status, runs, figures, changed, long, _, state, faster, resumed, ended = shown
    assert (created["name"], created["warnings"]) == ("top_genres", [])
    assert request["state"] == "succeeded"
    assert (status["status"], status["last_run"]["status"], status["runners"]) == ("IDLE", "SUCCESS", 1)
    assert [one["status"] for one in runs["items"]] == ["SUCCESS"]
    assert figures["by_status"] == {"SUCCESS": 1}
    assert (changed["batch_size"], changed["schedule_interval"]) == (1000, "5m")
    assert re.search(r"^ +name +\| films", output, re.MULTILINE)
    assert "source = target" in output
    # the pause shows a checkpoint that has moved, and the run continues from there
    assert long["name"] == "all_ratings"
    assert state["generation_open"]
    assert 0 < state["generation_rows"] < 3000
    assert state["generation_cursor"]
    assert '"waiting":"the pipeline is paused since ' in output
    assert faster["options"]["pause_between_batches"] == "0s"
    assert (ended["request_id"], ended["state"]) == (resumed["request_id"], "succeeded")
    assert 0 < ended["run"]["rows_read"] <= ended["run"]["rows_written"] - state["generation_rows"]
