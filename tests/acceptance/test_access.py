"""Access to the processes themselves: half-open connections, TLS, raw requests, tokens that must not leak."""

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.helpers.access import issue
from tests.helpers.processes import QUICK, environment, free_port, runner, started, vitrine
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.text import TOKEN_PATTERN

SOCKETS = 1000
START_SECONDS = 60  # on a busy machine


def fetch(port: int, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def seconds(port: int, path: str) -> float:
    begin = time.monotonic()
    assert get(port, path)[0] == 200, path
    return time.monotonic() - begin


@contextmanager
def half_open(port: int, count: int, first: bytes) -> Generator[list[socket.socket]]:
    """Connections that send the beginning of a request, and nothing more."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(count):
            one = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=30)))
            if first:
                try:
                    one.sendall(first)
                except OSError:
                    continue  # ended already, to make room
            sockets.append(one)
        yield sockets


# -- half-open connections --------------------------------------------------------------------------------------------


@pytest.mark.promise("K8")
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET /pipelines HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        b"POST /pipelines HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_half_open_connections_neither_delay_the_api_nor_stop_a_run(
    database_url: str, connection: Connection, genres: Pipeline, tmp_path: Path, first: bytes
) -> None:
    port, own = free_port(), free_port()
    env = environment(database_url, **QUICK, VITRINE_API_PORT=str(port))
    with started(["api"], tmp_path, env) as api, runner(database_url, tmp_path, VITRINE_METRICS_PORT=str(own)) as work:
        wait_until(lambda: get(port, "/health")[0] == 200, START_SECONDS, "the start of the API")
        paths = ("/pipelines", "/pipelines/genres/status")
        idle = {path: min(seconds(port, path) for _ in range(3)) for path in paths}
        with half_open(port, SOCKETS, first), half_open(own, SOCKETS, first):
            for path in paths:
                assert seconds(port, path) < 2 * idle[path] + 1
            assert get(own, "/ready")[0] == 200
            assert get(own, "/metrics")[0] == 200
            pipelines.request_run(connection, genres.id, trigger="api")
            wait_until(
                lambda: (
                    pipelines.get(connection, genres.id).status is Status.IDLE
                    and pipelines.get(connection, genres.id).fresh_as_of
                ),
                START_SECONDS,
                "the end of the run",
            )
            for process, limit in ((api, 2100), (work, 150)):
                assert len(list(Path(f"/proc/{process.process.pid}/fd").iterdir())) < limit
        assert (api.stop(), work.stop()) == (0, 0)
        assert "Traceback" not in api.output() + work.output()


@pytest.mark.promise("K8")
def test_a_request_that_does_not_arrive_in_time_is_ended(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    with started(["api"], tmp_path, environment(database_url, VITRINE_API_PORT=str(port))):
        wait_until(lambda: get(port, "/health/live")[0] == 200, START_SECONDS, "the start of the API")
        begin = time.monotonic()
        with half_open(port, 1, b"GET /pipelines HTTP/1.1\r\n") as (slow,):
            assert slow.recv(100) == b""
        assert 5 < time.monotonic() - begin < 20


# -- raw requests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def served(database_url: str, settings: Settings, connection: Connection, tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The port of a real API, and a viewer's token."""
    token = issue(settings, connection, Role.VIEWER)
    port = free_port()
    with started(["api"], tmp_path, environment(database_url, VITRINE_API_PORT=str(port))) as api:
        wait_until(lambda: get(port, "/health/live")[0] == 200, START_SECONDS, "the start of the API")
        yield port, token
        assert "Traceback" not in api.output()


def raw(port: int, request: str) -> str:
    """The status line of the answer to exactly these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode("latin1"))
        return connection.recv(65536).split(b"\r\n")[0].decode()


@pytest.mark.promise("K3")
def test_the_port_of_a_runner_answers_under_the_names_of_the_settings_only(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    names: dict[str, Any] = {"VITRINE_METRICS_PORT": str(port), "VITRINE_ALLOWED_HOSTS": "runner.example"}
    with runner(database_url, tmp_path, **names):
        wait_until(lambda: get(port, "/live")[0] == 200, START_SECONDS, "the start of the runner")
        for host, status in (("runner.example", "200"), (f"localhost:{port}", "200"), ("evil.example", "421")):
            assert f" {status} " in raw(port, f"GET /metrics HTTP/1.1\nHost: {host}\n\n")


@pytest.mark.promise("H1", "K3")
def test_raw_requests_find_no_way_around(served: tuple[int, str]) -> None:
    port, token = served
    host, auth = f"Host: 127.0.0.1:{port}\n", f"Authorization: Bearer {token}\n"
    for request, status in (
        (f"GET /pipelines HTTP/1.1\n{host}{auth}\n", "200"),
        (f"GET /pipelines HTTP/1.1\n{host}\n", "401"),
        (f"GET /pipelines HTTP/1.1\n{auth}\n", "400"),
        (f"GET /pipelines HTTP/1.0\n{auth}\n", "400"),
        (f"GET /pipelines HTTP/1.1\n{host}Host: evil.example\n{auth}\n", "400"),
        (f"GET /pipelines HTTP/1.1\nHost: evil.example\n{auth}\n", "421"),
        (f"GET /pipelines HTTP/1.1\nHost : 127.0.0.1\n{auth}\n", "400"),
        (f"GET http://127.0.0.1:{port}/pipelines HTTP/1.1\n{host}{auth}\n", "400"),
        (f"GET http://evil.example/pipelines HTTP/1.1\n{host}{auth}\n", "400"),
        (f"GET /pipelines HTTP/1.1\n{host}{auth}{auth}\n", "401"),
        (f"GET /pipelines HTTP/1.1\n{host}authorization: bearer {token}\n\n", "200"),
        (f"GET /pipelines HTTP/1.1\n{host}Authorization:Bearer\t{token}\n\n", "401"),
        (f"GET //pipelines HTTP/1.1\n{host}{auth}\n", "404"),
        (f"GET /%2e%2e/pipelines HTTP/1.1\n{host}{auth}\n", "404"),
        (f"GET /health/live/%2e%2e/%2e%2e/pipelines HTTP/1.1\n{host}\n", "401"),
        (f"GET /%70ipelines HTTP/1.1\n{host}\n", "401"),
        (f"GET /pipelines%2F HTTP/1.1\n{host}{auth}\n", "200"),
        (f"POST /pipelines/x%2Frun HTTP/1.1\n{host}{auth}\n", "403"),
        (f"GET /audit%0a HTTP/1.1\n{host}{auth}\n", "404"),
        (f"GET /pipelines?token={token} HTTP/1.1\n{host}{auth}\n", "400"),
        (f"HEAD /pipelines HTTP/1.1\n{host}\n", "401"),
        (f"OPTIONS /pipelines HTTP/1.1\n{host}\n", "401"),
        (f"OPTIONS * HTTP/1.1\n{host}\n", "400"),
        (f"GET /pipelines HTTP/1.1\n{host}Connection: Upgrade\nUpgrade: websocket\n\n", "401"),
        (f"GET /pipelines HTTP/1.1\n{host}X-Forwarded-For: 127.0.0.1\nX-Forwarded-Host: localhost\n\n", "401"),
        (f"GET /pipelines HTTP/1.1\n{host}X-HTTP-Method-Override: GET\nX-Original-URL: /health/live\n\n", "401"),
        (f"GET /tokens HTTP/1.1\n{host}{auth}Content-Length: 0\nTransfer-Encoding: chunked\n\n0\n\n", "4"),
    ):
        assert raw(port, request).startswith(f"HTTP/1.1 {status}"), request


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext {names}"
        f" -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return cert, key


def test_the_api_speaks_tls(
    database_url: str, settings: Settings, connection: Connection, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    token = issue(settings, connection, Role.VIEWER)
    port = free_port()
    env = environment(database_url, VITRINE_API_PORT=str(port), VITRINE_TLS_CERT=str(cert), VITRINE_TLS_KEY=str(key))
    trust = ssl.create_default_context(cafile=str(cert))
    request = Request(f"https://127.0.0.1:{port}/whoami", headers={"Authorization": f"Bearer {token}"})
    with started(["api"], tmp_path, env) as api:
        wait_until(lambda: "API at https://" in api.output(), START_SECONDS, "the start of the API")
        with urlopen(request, context=trust, timeout=30) as answer:
            assert b"the-viewer" in answer.read()
        for address, variables, reason in (
            ("https", {}, r"is not trusted \(.* SSL_CERT_FILE"),
            ("http", {}, "if it speaks TLS, give an address with https://"),
            ("https", {"SSL_CERT_FILE": str(cert)}, "give one with --token-file or VITRINE_TOKEN"),
        ):
            refused = vitrine(
                *("--api", f"{address}://127.0.0.1:{port}", "list"),
                folder=tmp_path,
                env=environment(None, **variables),
            )
            assert refused.returncode == 1
            assert re.search(reason, refused.stderr), refused.stderr
        # handshakes that never end make room, too
        with half_open(port, SOCKETS, b"\x16\x03\x01"), urlopen(request, context=trust, timeout=30) as answer:
            assert answer.status == 200
        assert api.stop() == 0


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"VITRINE_TLS_CERT": "cert.pem"}, "needed together"),
        ({"VITRINE_TLS_CERT": "missing.pem", "VITRINE_TLS_KEY": "key.pem"}, "No such file"),
        ({"VITRINE_TLS_CERT": "cert.pem", "VITRINE_TLS_KEY": "cert.pem"}, "cannot be used"),
        ({"VITRINE_TLS_CERT": "cert.pem", "VITRINE_TLS_KEY": "locked.pem"}, "is encrypted"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_one_sentence(
    database_url: str, certificate: tuple[Path, Path], tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    subprocess.run(
        f"openssl pkcs8 -topk8 -in {certificate[1]} -out {tmp_path}/locked.pem -passout pass:secret".split(),
        check=True,
        capture_output=True,
    )
    env = environment(database_url, VITRINE_API_PORT=str(free_port()), **files)
    refused = vitrine("api", folder=tmp_path, env=env)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert reason in refused.stderr


# -- the command line, and tokens that must not leak -------------------------------------------------------------------


@pytest.mark.promise("H3")
def test_a_token_appears_nowhere_but_where_it_is_created(
    database_url: str, connection: Connection, genres: Pipeline, tmp_path: Path
) -> None:
    port, own = free_port(), free_port()
    env = environment(
        database_url,
        **QUICK,
        VITRINE_API_PORT=str(port),
        VITRINE_METRICS_PORT=str(own),
        VITRINE_LOG_LEVEL="debug",
    )
    made = vitrine("token", "create", "canary", "--role", "admin", "--ttl", "1h", folder=tmp_path, env=env)
    token = made.stdout.strip()
    assert TOKEN_PATTERN.fullmatch(token)
    assert (made.returncode, token in made.stderr) == (0, False)
    texts: list[str] = []
    with started(["api"], tmp_path, env, new=True) as api, started(["runner"], tmp_path, env, new=True) as work:
        wait_until(lambda: fetch(port, "/health", token)[0] == 200, START_SECONDS, "the start of API and runner")
        for method, path in (
            ("GET", "/pipelines"),
            ("POST", "/pipelines/genres/run"),
            ("POST", "/pipelines/genres/pause"),
            ("GET", "/pipelines/genres/runs"),
            ("GET", "/whoami"),
            ("GET", "/tokens"),
            ("GET", "/audit"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", f"/pipelines/{token}"),
            ("GET", f"/pipelines?after={token}"),
            ("DELETE", f"/tokens/{token}"),
            ("GET", f"/{token}"),
        ):
            texts.append(fetch(port, path, token, method)[1])
        texts.append(fetch(port, "/pipelines", token[:-1] + ("a" if token[-1] != "a" else "b"))[1])
        texts.append(raw(port, f"GET /{token} HTTP/9.9\nAuthorization: {token}\n\n"))
        texts.append(get(own, "/metrics")[1])
        processes = subprocess.run(["ps", "auxww"], capture_output=True, text=True, check=True).stdout
        texts.append(processes)
        texts += [one.read_text("utf-8", "replace") for one in Path("/proc").glob("[0-9]*/cmdline") if one.exists()]
        assert (api.stop(), work.stop()) == (0, 0)
        texts += [api.output(), work.output()]
    for arguments in (("token", "list"), ("token", "list", "--json"), ("audit",), ("audit", "--json")):
        shown = vitrine(*arguments, folder=tmp_path, env=env)
        assert shown.returncode == 0
        texts += [shown.stdout, shown.stderr]
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'etl'").fetchall()
    for table in tables:
        rows = connection.execute(f"SELECT t::text AS row FROM etl.{table['tablename']} t".encode()).fetchall()
        texts += [row["row"] for row in rows]
    for text in texts:
        assert token not in text
        assert token[8:] not in text


def test_tokens_and_audit_on_the_command_line(database_url: str, connection: Connection, tmp_path: Path) -> None:
    env = environment(database_url)

    def said(*arguments: str, code: int = 0) -> str:
        done = vitrine(*arguments, folder=tmp_path, env=env)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    assert "There are no tokens" in said("token", "list")
    assert re.fullmatch(rf"{TOKEN_PATTERN.pattern}\n", said("token", "create", "ci", "--role", "viewer"))
    assert "already a token 'ci'" in said("token", "create", "ci", "--role", "viewer", code=1)
    assert "give one of viewer, operator, admin" in said("token", "create", "x", "--role", "root", code=1)
    assert "ttl" in said("token", "create", "x", "--role", "viewer", "--ttl", "soon", code=1)
    assert re.search(r"ci +viewer +vtr_\w{4}…", said("token", "list"))
    assert "ci: revoked" in said("token", "revoke", "ci")
    assert "there is no token 'ci'" in said("token", "revoke", "ci", code=1)
    lines = said("audit", "--json").splitlines()
    assert ['"operation":"tokens.revoke"' in lines[0], '"operation":"tokens.create"' in lines[1]] == [True, True]
    assert '"via":"cli"' in lines[0]
    assert "tokens.revoke" in said("audit", "--since", "1h")
    assert "tokens" not in said("audit", "--since", "2099-01-01")
    assert "--since" in said("audit", "--since", "yesterday", code=1)
    who = connection.execute("SELECT DISTINCT actor FROM etl.etl_audit").fetchall()
    assert who == [{"actor": subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()}]
