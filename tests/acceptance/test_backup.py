"""Backup and restore as docs/operations.md describes them."""

import re
import subprocess
from pathlib import Path

import pytest

from bench import psql
from tests.helpers.documents import ROOT
from tests.helpers.processes import environment, vitrine
from vitrine.postgres import Connection

PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")

RATINGS = """\
name: all_ratings
source_query: SELECT id, rating, modified FROM ugc.ratings
target_table: analytics.all_ratings
mode: incremental
incremental_key: modified
key_columns: [id]
"""


@pytest.mark.skipif(not (Path(psql.find()).parent / "pg_dump").exists(), reason="the wheel has no pg_dump")
def test_a_restored_dump_needs_one_full_run_of_an_incremental_mart(
    database_url: str, tmp_path: Path, connection: Connection
) -> None:
    env = environment(database_url)
    env["PATH"] = f"{Path(psql.find()).parent}:{env['PATH']}"

    def shell(program: str) -> None:
        (line,) = re.findall(rf"^ +({program} .+)$", PAGE, flags=re.MULTILINE)
        subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=env, check=True)

    def run(*arguments: str) -> tuple[int, str]:
        done = vitrine(*arguments, folder=tmp_path, env=env)
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "ratings.yaml").write_text(RATINGS)
    assert run("apply", "ratings.yaml")[0] == 0
    assert run("run", "all_ratings")[0] == 0
    shell("pg_dump")
    connection.execute("UPDATE ugc.ratings SET rating = 1, modified = now()")
    assert run("run", "all_ratings")[0] == 0
    shell("pg_restore")
    assert run("migrate")[0] == 0
    code, output = run("run", "all_ratings")
    assert (code, "TARGET_REPLACED" in output) == (1, True)
    assert run("run", "all_ratings", "--full")[0] == 0
    assert run("reconcile", "all_ratings")[0] == 0
    assert run("run", "all_ratings")[0] == 0
