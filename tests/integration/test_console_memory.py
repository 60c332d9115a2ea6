"""The memory of closed pages is freed."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.page_memory import SECONDS
from tests.helpers.pipelines import create
from vitrine.postgres import Connection
from vitrine.settings import Settings

ROOT = Path(__file__).parents[2]


def test_pages_that_were_closed_are_freed_without_waiting_for_the_heap_to_grow(
    settings: Settings, connection: Connection
) -> None:
    create(connection, "alpha")
    command = [sys.executable, "-m", "tests.helpers.page_memory", settings.store_url]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
