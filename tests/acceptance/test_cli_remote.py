"""The same commands through the API of another process: same output, same exit codes, no database."""

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.processes import QUICK, environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.postgres import Connection
from vitrine.store import pipelines

Command = Callable[..., subprocess.CompletedProcess[str]]

GENRES = """\
name: genres
source_query: SELECT id, name, modified FROM content.genre
target_table: analytics.genres
mode: incremental
incremental_key: modified
key_columns: [id]
tags: [tier-1]
"""
BROKEN = """\
name: broken
source_query: SELECT id, 1 / (id - id) AS n FROM content.numbers
target_table: analytics.broken
key_columns: [id]
"""


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of an API with a runner."""
    folder = tmp_path / "service"
    folder.mkdir()
    port = str(free_port())
    env = environment(database_url, VITRINE_API_PORT=port, **QUICK)
    with started(["api"], folder, env) as api, started(["runner"], folder, env) as runner:
        wait_until(lambda: "API at" in api.output() and "runner started" in runner.output(), timeout=60)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def remote(service: str, tmp_path: Path) -> Command:
    """`vitrine …` that knows the API only."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return vitrine(*arguments, folder=tmp_path, env=environment(None, VITRINE_API_URL=service, **variables))

    return run


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    assert (done.returncode, done.stderr.startswith("vitrine: ")) == (code, True), done
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("vitrine: ").rstrip("\n")


def test_pipelines_are_applied_run_and_examined_through_an_api(
    remote: Command, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "genres.yaml").write_text(GENRES)
    assert ok(remote("apply", "pipelines")) == "genres: created\n"
    assert ok(remote("run", "genres")).startswith("genres: finished, 26 rows read, 26 written, 0 deleted")
    (item,) = json.loads(ok(remote("list", "--tag", "tier-1", "--json")))["items"]
    assert (item["name"], item["last_run"]["status"]) == ("genres", "SUCCESS")
    assert "source = target" in ok(remote("reconcile", "genres"))
    connection.execute("DELETE FROM analytics.genres WHERE name = 'Drama'")
    different = remote("reconcile", "genres", "--quick")
    assert (different.returncode, "rows 26 ≠ 25" in different.stdout) == (2, True)
    deep = remote("reconcile", "genres", "--deep")
    assert (deep.returncode, "1 missing" in deep.stdout) == (2, True)
    assert "repaired 1 missing; source = target" in ok(remote("reconcile", "genres", "--repair"))
    assert "no row is in quarantine" in ok(remote("rejects", "genres", "--replay"))
    connection.execute("DELETE FROM analytics.genres WHERE name = 'Drama'")
    assert "1 written" in ok(remote("run", "genres", "--full"))
    assert "rows read" in ok(remote("run", "genres", "--from", "1990-01-01", "--to", "2100-01-01"))
    assert ok(remote("pause", "genres")) == "genres: PAUSED\n"
    assert "genres is PAUSED" in ok(remote("status", "genres"))
    assert "genres: disabled" in ok(remote("disable", "genres"))
    assert "is disabled; enable it first" in refused(remote("run", "genres"))
    ok(remote("enable", "genres"))
    assert "analytics.genres, incremental" in ok(remote("validate", "pipelines/genres.yaml"))
    assert len(json.loads(ok(remote("preview", "genres", "-n", "2", "--json")))["rows"]) == 2
    assert "run started" in ok(remote("logs", "genres"))
    assert "content.genre " in ok(remote("discover", "--schema", "content"))
    assert "map_fields" in ok(remote("transforms"))
    assert ok(remote("export", "out")) == "1 file(s) in out\n"
    assert ok(remote("apply", "out", "--prune")) == "genres: unchanged\n"
    assert "reads everything" in ok(remote("reset", "genres", "--yes"))
    assert ok(remote("delete", "genres", "--yes")) == "genres: deleted; analytics.genres stays\n"
    assert pipelines.list_all(connection) == []


def test_a_failed_run_ends_with_1_and_all_failed_pipelines_are_run_again(
    remote: Command, connection: Connection, tmp_path: Path
) -> None:
    connection.execute("CREATE TABLE content.numbers AS SELECT 1 AS id")
    (tmp_path / "broken.yaml").write_text(BROKEN)
    ok(remote("apply", "broken.yaml"))
    assert "'broken' failed (" in refused(remote("run", "broken"))
    assert pipelines.get(connection, "broken").status is Status.FAILED
    listed = ok(remote("list", "--failed"))
    assert "broken" in listed
    connection.execute("TRUNCATE content.numbers")
    assert "broken: finished" in ok(remote("run", "--failed"))


def test_mistakes_of_files_have_their_places_through_an_api_as_well(remote: Command, tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "genres.yaml").write_text(GENRES + "batch_size: 0\noptions:\n  lookbak: 5m\n")
    (folder / "twice.yaml").write_text(GENRES + "mode: full\n")
    text = refused(remote("apply", "pipelines"))
    assert text.startswith("nothing was applied:\n  twice.yaml, line 8, column 1: ")
    assert "genres.yaml, line 8, column 1: batch_size: give a whole number" in text
    assert "genres.yaml, line 10, column 3: " in text
    assert ok(remote("list")) == "No pipeline.\n"


@pytest.mark.promise("H2")
def test_tokens_and_audit_through_an_api_need_an_administrator(
    remote: Command, connection: Connection, tmp_path: Path
) -> None:
    made = remote("token", "create", "root", "--role", "admin", "--ttl", "1h")
    assert (made.returncode, "valid until" in made.stderr) == (0, True), made
    admin = made.stdout.strip()
    ends = connection.execute("SELECT expires_at - created_at AS ttl FROM etl.etl_tokens").fetchone()
    assert ends is not None
    assert ends["ttl"] == timedelta(hours=1)
    as_admin = partial(remote, VITRINE_TOKEN=admin)
    texts = {
        role: as_admin("token", "create", f"the-{role}", "--role", role).stdout.strip()
        for role in ("viewer", "operator")
    }
    listed = [json.loads(line) for line in ok(as_admin("token", "list", "--json")).splitlines()]
    assert [(one["name"], one["role"]) for one in listed] == [
        ("root", "admin"),
        ("the-operator", "operator"),
        ("the-viewer", "viewer"),
    ]
    assert "the-viewer" in ok(as_admin("token", "list"))
    for name, token in (("no token", ""), *texts.items()):
        for command in (
            ("token", "list"),
            ("token", "create", "x", "--role", "admin"),
            ("audit",),
            ("audit", "--json"),
        ):
            text = refused(remote(*command, VITRINE_TOKEN=token))
            assert ("needs the role admin" if token else "give one with --token-file or VITRINE_TOKEN") in text, (
                name,
                command,
            )
        revoked = refused(remote("token", "revoke", "root", VITRINE_TOKEN=token))
        assert ("needs the role admin" if token else "give one with --token-file or VITRINE_TOKEN") in revoked
    assert ok(as_admin("token", "revoke", "the-viewer")) == "the-viewer: revoked\n"
    assert "there is no token 'the-viewer'" in refused(as_admin("token", "revoke", "the-viewer"))
    assert "already a token 'root'" in refused(as_admin("token", "create", "root", "--role", "admin"))
    entries = [json.loads(line) for line in ok(as_admin("audit", "--json")).splitlines()]
    assert [(one["operation"], one["actor"], one["via"], one["address"]) for one in entries] == [
        ("tokens.revoke", "root", "api", "127.0.0.1"),
        ("tokens.create", "root", "api", "127.0.0.1"),
        ("tokens.create", "root", "api", "127.0.0.1"),
        ("tokens.create", "anonymous", "api", "127.0.0.1"),
    ]
    selected = ok(as_admin("audit", "--actor", "root", "--since", "1h", "--limit", "1"))
    assert ("tokens.revoke" in selected, "tokens.create" in selected) == (True, False)
    assert "tokens" not in ok(as_admin("audit", "--since", "2099-01-01"))


def test_an_audit_log_of_several_pages_is_exported_through_an_api(remote: Command, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO etl.etl_audit (actor, role, via, operation)"
        " SELECT 'ci', 'admin', 'cli', 'test.' || n FROM generate_series(1, 450) AS n"
    )
    entries = [json.loads(line) for line in ok(remote("audit", "--json")).splitlines()]
    assert [one["operation"] for one in entries] == [f"test.{n}" for n in range(450, 0, -1)]


@pytest.mark.parametrize("command", ["migrate", "api", "runner", "demo", "up", "sample"])
def test_commands_of_the_database_refuse_an_api(command: str, tmp_path: Path) -> None:
    done = vitrine(command, "--api", "http://127.0.0.1:1", folder=tmp_path, env=environment(None))
    text = f"`vitrine {command}` works on the database itself: run it there without --api"
    assert refused(done) == text


class _Recording(BaseHTTPRequestHandler):
    """An API that records the Authorization header and answers as it is asked to."""

    seen: list[str | None]
    answer: tuple[int, dict[str, str], bytes]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        status, headers, body = self.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def recording() -> Iterator[tuple[str, type[_Recording]]]:
    handler = type("Recording", (_Recording,), {"seen": [], "answer": (200, {}, b'{"items": [], "next": null}')})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_token_is_sent_as_a_header_and_never_to_another_address(
    recording: tuple[str, type[_Recording]], tmp_path: Path
) -> None:
    url, handler = recording
    env = environment(None, VITRINE_TOKEN="from-environment")
    assert ok(vitrine("list", "--api", url, folder=tmp_path, env=env)) == "No pipeline.\n"
    (tmp_path / "token").write_text("from-file\n")
    ok(vitrine("list", "--token-file", "token", "--api", url, folder=tmp_path, env=env))
    ok(vitrine("list", "--api", url, folder=tmp_path, env=environment(None)))
    assert handler.seen == ["Bearer from-environment", "Bearer from-file", None]
    handler.answer = (302, {"Location": f"{url}/elsewhere"}, b"")
    done = vitrine("list", "--api", url, folder=tmp_path, env=env)
    assert "redirects to" in refused(done)
    assert len(handler.seen) == 4
    assert "from-environment" not in done.stderr + done.stdout


def test_an_answer_that_is_not_of_vitrine_is_reported_in_one_sentence(
    recording: tuple[str, type[_Recording]], tmp_path: Path
) -> None:
    url, handler = recording
    env = environment(None, VITRINE_API_URL=url)
    for status, body in ((200, b"<html>"), (200, b"[]"), (502, b"bad gateway"), (500, b'{"detail": 1}')):
        handler.answer = (status, {}, body)
        assert "not as an API of Vitrine does" in refused(vitrine("list", folder=tmp_path, env=env))
    secure = environment(None, VITRINE_API_URL=url.replace("http:", "https:"))
    assert "does not speak TLS" in refused(vitrine("list", folder=tmp_path, env=secure))
    problem = {"code": "FORBIDDEN", "detail": "the token may not read pipelines"}
    handler.answer = (403, {}, json.dumps(problem).encode())
    assert refused(vitrine("list", folder=tmp_path, env=env)) == problem["detail"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--api", "ftp://example.com", "list"], "VITRINE_API_URL is not valid: give the address of an API"),
        (["--api", "http://me:secret@127.0.0.1", "list"], "the token belongs in VITRINE_TOKEN"),
        (["--api", "http://127.0.0.1:1/?token=secret", "list"], "the token belongs in VITRINE_TOKEN"),
        (["--api", "http://127.0.0.1:1", "--token-file", "nowhere", "list"], "cannot read the token file 'nowhere'"),
        (["--api", "http://127.0.0.1:1", "list"], "cannot be reached"),
    ],
)
def test_a_wrong_address_or_token_file_is_reported(arguments: list[str], reason: str, tmp_path: Path) -> None:
    done = vitrine(*arguments, folder=tmp_path, env=environment(None))
    assert reason in refused(done)
    assert "secret" not in done.stderr
