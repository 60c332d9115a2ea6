"""Secrets and row values that are planted in a running installation appear nowhere else.

To extend it: a new secret is an entry of CANARIES, a new place that could show one is a line of `places`.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.helpers.processes import QUICK, Started, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection

CANARIES = {
    "database": "canary-dsn@/%#?:t4il-dsn",
    "source": "canary-far@t4il-far",
    "cluster": "canary-es/t4il-es",
    "row": "canary-row-value",
}
# a key is named in errors on purpose; so the planted value is in another column
PIPELINES: dict[str, dict[str, Any]] = {
    "good": {"source_query": "SELECT id, note FROM content.notes"},
    "unfit_reason": {"source_query": "SELECT id, note AS n FROM content.notes"},
    "broken_query": {"source_query": "SELECT id, note::integer AS n FROM content.notes"},
    "doubled": {"source_query": "SELECT id, note FROM content.notes UNION ALL SELECT id, note FROM content.notes"},
    "search": {"source_query": "SELECT id, note FROM content.notes", "target_table": "es:notes"},
    "far": {"source_query": "SELECT id FROM content.notes", "source": "far"},
}


def ask(port: int, method: str, path: str, body: Any = None) -> str:
    """The answer, headers included, whatever its status."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as exc:
        with exc:
            return f"{exc.headers}{exc.read().decode()}"
    except OSError:
        return ""


def process_texts(one: Started) -> str:
    """Arguments and environment, as `ps` shows them."""
    folder = Path(f"/proc/{one.process.pid}")
    if not folder.exists():
        pytest.skip("needs /proc")
    return (folder / "cmdline").read_text("utf-8", "replace") + (folder / "environ").read_text("utf-8", "replace")


def command_texts(folder: Path, env: dict[str, str]) -> Iterator[tuple[str, str]]:
    commands: list[tuple[str, ...]] = [
        ("list",),
        *((command, name) for name in PIPELINES for command in ("status", "validate", "run", "rejects")),
    ]
    commands += [("reconcile", "good"), ("reconcile", "broken_query"), ("status", "missing")]
    with ThreadPoolExecutor(4) as pool:  # most of them wait for servers that do not answer
        started_commands = [(one, pool.submit(vitrine, *one, folder=folder, env=env)) for one in commands]
    for command, future in started_commands:
        finished = future.result()
        yield " ".join(command), finished.stdout + finished.stderr
        assert "Traceback" not in finished.stderr, (command, finished.stderr)


def answer_texts(port: int) -> Iterator[tuple[str, str]]:
    paths = ["/pipelines", "/health", "/metrics", "/openapi.json", "/pipelines/missing", "/nothing"]
    paths += [f"/pipelines/{name}{part}" for name in PIPELINES for part in ("", "/status", "/runs", "/state")]
    for path in paths:
        yield f"GET {path}", ask(port, "GET", path)
    for name, fields in PIPELINES.items():
        body = {"name": f"{name}_2", "target_table": "analytics.x", "key_columns": ["id"], **fields}
        yield f"POST {name}", ask(port, "POST", "/pipelines", body)


def history_texts(connection: Connection) -> Iterator[tuple[str, str]]:
    """The tables of the store; the rows in quarantine are meant to hold values."""
    for row in connection.execute(
        "SELECT oid::regclass::text AS name FROM pg_class WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r'"
        "   AND relname <> 'etl_rejects'"
    ).fetchall():
        yield row["name"], str(connection.execute(f"TABLE {row['name']}".encode()).fetchall())


@pytest.mark.promise("H3", "K9")
def test_a_planted_secret_appears_nowhere(connection: Connection, database_url: str, tmp_path: Path) -> None:
    connection.execute("CREATE TABLE content.notes (id integer PRIMARY KEY, note text)")
    connection.execute("INSERT INTO content.notes VALUES (1, %s), (2, '7')", [CANARIES["row"]])
    connection.execute("CREATE TABLE analytics.unfit_reason (id integer PRIMARY KEY, n integer)")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    urls = {
        "VITRINE_DATABASE_URL": database_url.replace("@", f":{quote(CANARIES['database'], safe='')}@"),
        "VITRINE_SOURCES__FAR": f"postgresql://far:{quote(CANARIES['source'], safe='')}@127.0.0.1:1/far",
        "VITRINE_ELASTICSEARCH_URL": f"http://elastic:{quote(CANARIES['cluster'], safe='')}@127.0.0.1:1",
    }
    files: dict[str, str] = {}
    for variable, url in urls.items():
        (secrets / variable).write_text(f"{url}\n")
        files[f"{variable}_FILE"] = str(secrets / variable)
    api_port, metrics_port = free_port(), free_port()
    env = environment(
        None, VITRINE_API_PORT=str(api_port), VITRINE_LOG_LEVEL="debug", VITRINE_LOG_FORMAT="json", **files, **QUICK
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    found: dict[str, str] = {}
    with (
        started(["api"], logs, env, new=True) as api,
        started(["runner", "--metrics-port", str(metrics_port)], logs, env, new=True) as runner,
    ):
        wait_until(lambda: '"ok"' in ask(api_port, "GET", "/health"), 60)
        for name, fields in PIPELINES.items():
            body = {"name": name, "target_table": f"analytics.{name}", "key_columns": ["id"], **fields}
            created = ask(api_port, "POST", "/pipelines", body)
            found[f"create {name}"] = created
        for definition in PIPELINES:
            _store_unchecked(connection, definition)
            found[f"run {definition}"] = ask(api_port, "POST", f"/pipelines/{definition}/run")
        wait_until(
            lambda: (
                connection.execute(
                    "SELECT FROM etl.etl_runs WHERE status IN ('FAILED', 'SUCCESS') GROUP BY pipeline_id"
                ).rowcount
                >= len(PIPELINES) - 1
            ),
            timeout=120,
        )
        found |= dict(answer_texts(api_port))
        found["metrics of the runner"] = ask(metrics_port, "GET", "/metrics")
        found["processes"] = process_texts(api) + process_texts(runner)
        found |= dict(command_texts(tmp_path, env))
    found |= dict(history_texts(connection))
    found["log of the API"], found["log of the runner"] = api.output(), runner.output()
    assert "Traceback" not in found["log of the API"] + found["log of the runner"]
    assert all(name in found["etl.etl_pipelines"] for name in PIPELINES)
    assert "failed" in found["log of the runner"]
    for kind, secret in CANARIES.items():
        shown = [place for place, text in found.items() if any(one in text for one in _forms(secret))]
        allowed = {"rejects unfit_reason"} if kind == "row" else set[str]()
        assert set(shown) <= allowed, (kind, shown)


def _forms(secret: str) -> set[str]:
    """The secret, encoded as in a URL, and its tail, which a driver takes for a host."""
    return {secret, quote(secret, safe=""), quote(secret), *re.findall(r"canary-[a-z-]+|t4il-[a-z]+", secret)}


def _store_unchecked(connection: Connection, name: str) -> None:
    """Store a pipeline that the API has refused: history must be safe for those as well."""
    fields = {"target_table": f"analytics.{name}", "source": "default", **PIPELINES[name]}
    connection.execute(
        "INSERT INTO etl.etl_pipelines (name, type, source_query, source, target_table, mode, key_columns)"
        " VALUES (%(name)s, 'SQL', %(source_query)s, %(source)s, %(target_table)s, 'full', '{id}')"
        " ON CONFLICT DO NOTHING",
        {"name": name, **fields},
    )
