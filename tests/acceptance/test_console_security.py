"""Who reaches the console: sessions, origins, revoked tokens; and that the API is the same with it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from tests.helpers.access import context, issue
from tests.helpers.console import COOKIE, Site, is_open, served
from tests.helpers.console_fixtures import connection, database_url, settings
from tests.helpers.databases import copy_of
from tests.helpers.folders import server_folder
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres
from vitrine.operations import access
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings

__all__ = ["connection", "database_url", "settings"]

SCRIPT = "/console/files/console.js"


# one process for all tests that need tokens, and one for those that need none: its start takes longer than most tests


@pytest.fixture(scope="module")
def site(database_url: str, settings: Settings, connection: Connection) -> Iterator[Site]:
    """It has tokens, so that it asks for a login."""
    issue(settings, connection, Role.VIEWER, "first")
    with server_folder("vitrine-test-") as folder, served(database_url, folder) as site:
        yield site


@pytest.fixture
def token(settings: Settings, connection: Connection) -> Iterator[str]:
    yield issue(settings, connection, Role.ADMIN, "alice")
    if any(one.name == "alice" for one in access.list_tokens(context(settings, connection)).items):
        access.revoke_token(context(settings, connection), "alice")
    connection.execute("DELETE FROM etl.etl_sessions")


@pytest.fixture(scope="module")
def open_url(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    """A store without tokens."""
    with copy_of(postgres, template, "console_without_tokens") as name:
        yield postgres.tcp_url(name)


@pytest.fixture(scope="module")
def open_site(open_url: str) -> Iterator[Site]:
    with server_folder("vitrine-test-") as folder, served(open_url, folder) as site:
        yield site


def refusal_of(site: Site, page: str, **given: Any) -> int:
    with pytest.raises(InvalidStatus) as refused, site.socket(page, **given) as socket:
        socket.recv(timeout=5)
    return refused.value.response.status_code


@pytest.mark.promise("H30", "H33")
def test_a_websocket_needs_the_origin_and_the_session_of_its_page(
    token: str, site: Site, settings: Settings, connection: Connection
) -> None:
    own = site.log_in(token)
    page = site.page_id(own)
    with site.socket(page, session=own) as socket:
        assert is_open(socket)
    assert refusal_of(site, page, session=own, origin="https://elsewhere.example") == 403
    assert refusal_of(site, page, session=own, without_origin=True) == 403
    assert refusal_of(site, page) == 403
    assert refusal_of(site, page, session="made-up") == 403
    other = site.log_in(issue(settings, connection, Role.VIEWER, f"bob{time.time_ns()}"))
    assert refusal_of(site, page, session=other) == 403, "the page of another session"
    # a socket that was admitted for another page cannot speak for this one
    with site.socket("00000000-0000-4000-8000-000000000000", session=other) as socket:
        assert is_open(socket)
        socket.send("40")
        assert str(socket.recv(timeout=10)).startswith("40")
        socket.send('421["handshake",{"client_id":"' + page + '","tab_id":"t","document_id":"d"}]')
        assert socket.recv(timeout=10) == "431[false]"


@pytest.mark.promise("H30")
def test_without_tokens_a_page_of_another_site_opens_no_websocket(open_site: Site) -> None:
    site = open_site
    page = site.page_id()
    with site.socket(page) as socket:
        assert is_open(socket)
    assert refusal_of(site, page, origin="https://elsewhere.example") == 403
    assert refusal_of(site, page, without_origin=True) == 403


def test_without_a_session_there_is_a_login_page_and_nothing_else(token: str, site: Site) -> None:
    assert token
    answer = site.get("/console/pipelines/x?state=failed")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/console/login?next=%2Fconsole%2Fpipelines%2Fx%3Fstate%3Dfailed",
    )
    form = site.get("/console/login")
    assert (form.status_code, "Access token" in form.text) == (200, True)
    assert "script-src 'self' 'nonce-" in form.headers["content-security-policy"]
    assert "'unsafe-inline'" not in form.headers["content-security-policy"].partition("style-src")[0]
    assert site.get(SCRIPT, Accept="*/*").status_code == 401
    # a link from another site comes without the cookie; the page asks once more by itself
    linked = site.get("/console", **{"Sec-Fetch-Site": "cross-site"})
    assert (linked.status_code, 'http-equiv="refresh"' in linked.text) == (200, True)


@pytest.mark.promise("H30")
def test_the_cookie_is_strict_and_never_opens_the_api(token: str, site: Site, connection: Connection) -> None:
    answer = site.post("/login", {"token": token, "next": "/console?state=late"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console?state=late")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/console", "max-age="))
    session = answer.cookies[COOKIE]
    assert session not in token
    stored = connection.execute("SELECT s::text AS row FROM etl.etl_sessions s").fetchall()
    assert len(stored) == 1
    assert session not in stored[0]["row"]
    assert token not in stored[0]["row"]
    assert site.get("/console", session=session).status_code == 200
    for path in ("/pipelines", "/api/v1/whoami", "/metrics", "/docs"):
        assert site.get(path, session=session).status_code == 401, path


@pytest.mark.promise("H30")
def test_a_login_from_another_site_is_refused_and_so_is_a_wrong_token(token: str, site: Site) -> None:
    for origin in ("https://elsewhere.example", "null", ""):
        assert site.post("/login", {"token": token}, Origin=origin).status_code == 403, origin
    wrong = site.post("/login", {"token": f"{token[:-1]}x", "next": '"><script>alert(1)</script>'})
    assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)
    assert "This token is not valid" in wrong.text
    assert "<script>alert" not in wrong.text
    for target in ("//elsewhere.example", "https://elsewhere.example", "/console\\@elsewhere.example", "/docs"):
        answer = site.post("/login", {"token": token, "next": target})
        assert answer.headers["location"] == "/console", target
    assert site.post("/login", {"token": "x" * 5000}).status_code == 400
    for method in ("PUT", "DELETE", "PATCH"):
        assert httpx.request(method, site.console, headers={"Origin": site.address}).status_code == 405


def test_a_logout_ends_the_session_on_the_server(token: str, site: Site, connection: Connection) -> None:
    session = site.log_in(token)
    page = site.page_id(session)
    answer = site.post("/logout", Cookie=f"{COOKIE}={session}")
    assert answer.headers["location"] == "/console/login"
    assert site.get("/console", session=session).status_code == 303
    assert refusal_of(site, page, session=session) == 403
    assert connection.execute("SELECT FROM etl.etl_sessions").fetchall() == []
    operations = [row["operation"] for row in connection.execute("SELECT operation FROM etl.etl_audit ORDER BY id")]
    assert operations[-2:] == ["sessions.open", "sessions.close"]


@pytest.mark.promise("H30")
def test_a_revoked_token_ends_its_sessions_within_five_seconds(
    token: str, site: Site, settings: Settings, connection: Connection
) -> None:
    session = site.log_in(token)
    page = site.page_id(session)
    with site.socket(page, session=session) as socket:
        assert is_open(socket)
        access.revoke_token(context(settings, connection), "alice")
        revoked = time.monotonic()
        # a file, not a page: hundreds of them would be open
        wait_until(lambda: site.get(SCRIPT, session=session, Accept="*/*").status_code == 401, timeout=5)
        assert time.monotonic() - revoked < 5
        assert site.get("/console", session=session).status_code == 303
        assert refusal_of(site, page, session=session) == 403


def test_an_expired_session_is_refused_and_removed_at_the_next_login(
    token: str, site: Site, connection: Connection
) -> None:
    session = site.log_in(token)
    connection.execute("UPDATE etl.etl_sessions SET expires_at = now() - interval '1 second'")
    assert site.get("/console", session=session).status_code == 303
    site.log_in(token)
    row = connection.execute("SELECT count(*) AS sessions FROM etl.etl_sessions").fetchone()
    assert row == {"sessions": 1}


def test_a_session_in_use_is_extended_but_not_for_ever(token: str, site: Site, connection: Connection) -> None:
    session = site.log_in(token)
    connection.execute("""UPDATE etl.etl_sessions SET seen_at = now() - interval '1 hour',
        expires_at = now() + interval '1 minute', created_at = now() - interval '6 days 23 hours'""")
    assert site.get("/console", session=session).status_code == 200
    row = connection.execute("""SELECT expires_at > now() + interval '50 minutes' AS extended,
        expires_at <= created_at + interval '7 days' AS bounded FROM etl.etl_sessions""").fetchone()
    assert row == {"extended": True, "bounded": True}


def test_another_name_in_the_host_header_is_refused(site: Site) -> None:
    for path in ("/", "/console", "/console/login"):
        assert site.get(path, Host="elsewhere.example").status_code == 421, path


def test_a_proxy_without_tokens_is_refused(open_site: Site) -> None:
    assert open_site.get("/console", **{"X-Forwarded-For": "192.0.2.1"}).status_code == 403


def test_sigterm_with_open_pages_stays_within_its_promise(database_url: str, tmp_path: Path, token: str) -> None:
    with served(database_url, tmp_path) as site:
        session = site.log_in(token)
        _stop_under_sockets(site, session)


def _stop_under_sockets(site: Site, session: str) -> None:
    first, second = site.page_id(session), site.page_id(session)
    with site.socket(first, session=session) as socket, site.socket(second, session=session) as other:
        assert is_open(socket)
        assert is_open(other)
        began = time.monotonic()
        assert site.process.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < 8
        with pytest.raises(ConnectionClosed):
            _read_all(socket)


def _read_all(socket: ClientConnection) -> None:
    while True:
        socket.recv(timeout=5)


PROBES = [
    ("GET", "/pipelines"),
    ("GET", "/pipelines/"),
    ("GET", "/pipelines/none"),
    ("GET", "/nothing"),
    ("GET", "/nothing/"),
    ("DELETE", "/pipelines"),
    ("POST", "/health/live"),
    ("GET", "/health/live/"),
    ("GET", "/consol"),
    ("GET", "/consoles"),
    ("GET", "/_nicegui/x"),
    ("POST", "/"),
    ("DELETE", "/"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    ("GET", "/api/v1/whoami"),
    ("OPTIONS", "/pipelines"),
]


def answers(site: Site) -> list[tuple[str, str, int, dict[str, str], bytes]]:
    found: list[tuple[str, str, int, dict[str, str], bytes]] = []
    for method, path in PROBES:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        for extra in ({}, upgrade if method == "GET" else {}):
            answer = httpx.request(method, f"{site.address}{path}", headers=extra, timeout=20)
            headers = {name: value for name, value in answer.headers.items() if name != "date"}
            found.append((method, path, answer.status_code, headers, answer.content))
    return found


@pytest.mark.promise("H31")
def test_every_answer_of_the_api_is_the_same_with_and_without_the_console(open_url: str, tmp_path: Path) -> None:
    with served(open_url, tmp_path, new=True) as with_console:
        own = answers(with_console)
        assert with_console.get("/").headers["location"] == "/console"
    with served(open_url, tmp_path, new=True, VITRINE_CONSOLE="false") as without:
        assert own == answers(without)
        assert without.get("/").headers["location"] == "/docs"
        assert without.get("/console").status_code == 404
