"""Who gets in: Host names, tokens, roles, proxies; every route with every kind of credentials."""

import asyncio
import base64
import logging
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from tests.helpers.access import bearer, context, issue
from tests.helpers.hosts import ALLOWED, BAD_HOSTS, GOOD_HOSTS
from tests.helpers.running import create
from tests.helpers.waiting import wait_until
from vitrine.api import access, addresses, problems
from vitrine.api.app import create_app
from vitrine.api.permissions import OPERATIONS, PERMISSIONS, Permission
from vitrine.core.status import Status
from vitrine.errors import ConfigError, Forbidden
from vitrine.operations.access import revoke_token
from vitrine.operations.context import Role, role_of
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.store.access import insert_token
from vitrine.text import TOKEN_PATTERN, new_token, token_hash

REVOKED_WITHIN_SECONDS = 5.0


def exposed(settings: Settings, **fields: Any) -> Settings:
    """Settings of an API that other machines reach."""
    return settings.model_copy(update={"api_host": "0.0.0.0", **fields})


def call(client: TestClient, permission: Permission, headers: dict[str, str] | None = None) -> Any:
    path = permission.path.replace("{request_id}", str(uuid4()))
    path = re.sub(r"\{\w+\}", "unknown", path)
    body: dict[str, Any] | None = {} if permission.method in ("POST", "PATCH", "PUT") else None
    return client.request(permission.method, path, json=body, headers=headers, follow_redirects=False)


# Tokens and roles


@pytest.mark.promise("H1", "H19")
def test_every_wrong_token_gets_the_same_answer_at_every_route(
    client: TestClient, settings: Settings, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FREE_ATTEMPTS", 1_000_000)
    good = issue(settings, connection, Role.ADMIN)
    expired = issue(settings, connection, Role.ADMIN, "expired", ttl=timedelta(milliseconds=1))
    revoked = issue(settings, connection, Role.ADMIN, "revoked")
    revoke_token(context(settings, connection), "revoked")
    other_end = "a" if good[-1] != "a" else "b"
    wrong: dict[str, dict[str, str]] = {
        "none": {},
        "empty": {"Authorization": ""},
        "scheme only": {"Authorization": "Bearer"},
        "two words": {"Authorization": f"Bearer {good} {good}"},
        "tab": {"Authorization": f"Bearer\t{good}"},
        "another scheme": {"Authorization": f"Token {good}"},
        "digest": {"Authorization": f'Digest username="{good}"'},
        "basic": {"Authorization": "Basic " + base64.b64encode(f"x:{good}".encode()).decode()},
        "malformed": bearer(good[:-1]),
        "checksum": bearer(good[:-1] + other_end),
        "case": bearer(good.swapcase()),
        "comma": bearer(f"{good},{good}"),
        "unknown": bearer(new_token()),
        "expired": bearer(expired),
        "revoked": bearer(revoked),
    }
    wait_until(lambda: client.get("/whoami", headers=bearer(revoked)).status_code == 401, what="the revocation")
    bodies: set[bytes] = set()
    for permission in PERMISSIONS:
        for kind, headers in wrong.items():
            if kind == "basic" and permission.in_browser:
                continue  # a browser can send a token only so
            answer = call(client, permission, headers)
            if permission.role is None:
                assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
                continue
            assert answer.status_code == 401, (permission, kind)
            assert answer.headers.get_list("www-authenticate")[0] == "Bearer"
            bodies.add(answer.content)
    bodies.discard(b"")  # the answer to HEAD
    assert len(bodies) == 1
    assert b"vitrine token create" in bodies.pop()
    for path in ("/nothing", "/pipelines/x/nothing", "/api/v2", "/etc/passwd"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer(good)).status_code == 404


@pytest.mark.promise("H2")
@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_use_exactly_the_routes_of_the_table(
    client: TestClient, settings: Settings, connection: Connection, role: Role
) -> None:
    headers = bearer(issue(settings, connection, role))
    wait_until(lambda: client.get("/whoami", headers=headers).json()["name"] != "anonymous", what="the token")
    refused = 0
    for permission in PERMISSIONS:
        answer = call(client, permission, headers)
        if permission.role is None or role.includes(permission.role):
            assert answer.status_code not in (401, 403), permission
            assert answer.status_code != 500, permission
        else:
            refused += 1
            assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), permission
    assert (refused > 0) is (role is not Role.ADMIN)
    assert client.get("/whoami", headers=headers).json() == {
        "name": f"the-{role}",
        "role": role,
        "via": "api",
        "address": "testclient",
    }


@pytest.mark.promise("H2")
def test_a_service_function_refuses_a_role_whatever_calls_it(settings: Settings, connection: Connection) -> None:
    for operation in OPERATIONS.values():
        for role in Role:
            if not role.includes(role_of(operation)):
                with pytest.raises(Forbidden, match=f"needs the role {role_of(operation)}"):
                    operation(context(settings, connection, role))


def test_a_token_is_shown_once_and_stored_as_a_hash(
    client: TestClient, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        created = client.post("/api/v1/tokens", json={"name": "airflow", "role": "operator", "ttl": "2h"})
        assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
        token = created.json()["token"]
        assert TOKEN_PATTERN.fullmatch(token)
        admin = bearer(issue_admin(client, token))
    shown = client.get("/tokens", headers=admin)
    assert [(one["name"], one["role"], one["created_by"]) for one in shown.json()["items"]] == [
        ("airflow", "operator", "anonymous"),
        ("root", "admin", "test"),
    ]
    stored = connection.execute("SELECT t::text AS row FROM etl.etl_tokens t").fetchall()
    audit = client.get("/audit", headers=admin)
    for text in (shown.text, str(stored), audit.text, caplog.text):
        assert token not in text
        assert token[8:] not in text
    lifetime = "SELECT expires_at - created_at AS ttl FROM etl.etl_tokens WHERE name = 'airflow'"
    assert (connection.execute(lifetime).fetchone() or {})["ttl"] == timedelta(hours=2)


def issue_admin(client: TestClient, operator: str) -> str:
    """An administrator's token, which only the database can give once there is a first token."""
    assert client.post("/tokens", json={"name": "x", "role": "admin"}, headers=bearer(operator)).status_code == 403
    assert client.post("/tokens", json={"name": "x", "role": "admin"}).status_code == 401
    token = new_token()
    app: Any = client.app
    with app.state.pool.connection() as connection:
        insert_token(
            connection,
            name="root",
            role="admin",
            hash=token_hash(token) or b"",
            prefix=token[:8],
            created_by="test",
            ttl=timedelta(hours=1),
        )
    wait_until(lambda: client.get("/whoami", headers=bearer(token)).status_code == 200, what="the new token")
    return token


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Airflow", "role": "viewer"}, "name"),
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": "a" * 64, "role": "viewer"}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x"}, "role"),
        ({"name": "x", "role": "viewer", "ttl": "0s"}, "ttl"),
        ({"name": "x", "role": "viewer", "ttl": "-1d"}, "ttl"),
        ({"name": "x", "role": "viewer", "ttl": "99999d"}, "ttl"),
        ({"name": "x", "role": "viewer", "ttl": None}, "ttl"),
        ({"name": "x", "role": "viewer", "token": "mine"}, "token"),
        ({"name": "x", "role": "viewer", "hash": "00"}, "hash"),
    ],
)
def test_a_token_needs_a_name_a_role_and_an_end(client: TestClient, body: dict[str, Any], field: str) -> None:
    answer = client.post("/tokens", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert client.get("/tokens").json()["items"] == []


def test_a_name_is_free_again_when_its_token_is_revoked(
    settings: Settings, connection: Connection, client: TestClient
) -> None:
    admin = bearer(issue(settings, connection, Role.ADMIN))
    wait_until(lambda: client.get("/whoami", headers=admin).json().get("name") == "the-admin", what="the token")
    new = {"name": "ci", "role": "viewer"}
    assert client.post("/tokens", json=new, headers=admin).status_code == 201
    taken = client.post("/tokens", json=new, headers=admin)
    assert (taken.status_code, taken.json()["code"]) == (409, "NAME_TAKEN")
    assert client.delete("/tokens/ci", headers=admin).status_code == 204
    assert client.delete("/tokens/ci", headers=admin).status_code == 404
    assert client.post("/tokens", json=new, headers=admin).status_code == 201


@pytest.mark.promise("H1")
def test_a_revoked_token_loses_its_rights_within_five_seconds(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    headers = bearer(issue(settings, connection, Role.OPERATOR))
    wait_until(lambda: client.get("/whoami", headers=headers).json().get("name") == "the-operator", what="the token")
    revoke_token(context(settings, connection), "the-operator")
    revoked_at = time.monotonic()
    wait_until(lambda: client.get("/pipelines", headers=headers).status_code == 401, what="the end of the token")
    assert time.monotonic() - revoked_at < REVOKED_WITHIN_SECONDS


def test_the_last_use_of_a_token_is_recorded_to_the_minute(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    headers = bearer(issue(settings, connection, Role.VIEWER))
    asked = "SELECT last_used_at AS at FROM etl.etl_tokens"
    assert (connection.execute(asked).fetchone() or {})["at"] is None
    wait_until(lambda: client.get("/whoami", headers=headers).json().get("role") == "viewer", what="the token")
    used = wait_until(lambda: (connection.execute(asked).fetchone() or {})["at"], what="its last use")
    assert (used.second, used.microsecond) == (0, 0)


# Without tokens


@pytest.mark.promise("H20")
def test_without_tokens_a_request_of_this_machine_is_an_anonymous_administrator(client: TestClient) -> None:
    assert client.get("/whoami").json() == {
        "name": "anonymous",
        "role": "admin",
        "via": "api",
        "address": "testclient",
    }


@pytest.mark.promise("H20")
def test_without_tokens_nothing_that_came_through_a_proxy_is_answered(client: TestClient) -> None:
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        answer = client.get("/pipelines", headers={name: "192.0.2.1"})
        assert (answer.status_code, answer.json()["code"]) == (403, "PROXY_WITHOUT_TOKENS")


@pytest.mark.promise("H20")
def test_an_api_that_other_machines_reach_never_falls_open(settings: Settings, connection: Connection) -> None:
    with TestClient(create_app(exposed(settings, trusted_proxies=("127.0.0.1/32",)))) as client:
        assert client.get("/pipelines").status_code == 401
        headers = bearer(issue(settings, connection, Role.ADMIN))
        wait_until(lambda: client.get("/pipelines", headers=headers).status_code == 200, what="the token")
        connection.execute("DELETE FROM etl.etl_tokens")
        wait_until(lambda: client.get("/pipelines", headers=headers).status_code == 401, what="the end of the token")
        assert client.get("/pipelines").status_code == 401


@pytest.mark.promise("H20")
def test_revoked_and_expired_tokens_do_not_open_the_api_again(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    issue(settings, connection, Role.ADMIN)
    wait_until(lambda: client.get("/pipelines").status_code == 401, what="the first token")
    revoke_token(context(settings, connection), "the-admin")
    issue(settings, connection, Role.ADMIN, "short", ttl=timedelta(milliseconds=1))
    app: Any = client.app
    app.state.tokens.forget()
    assert client.get("/pipelines").status_code == 401


@pytest.mark.promise("H20")
@pytest.mark.parametrize("client_address", ["192.0.2.7", "2001:db8::7", "10.0.0.1"])
def test_without_tokens_another_machine_is_refused_even_if_it_reaches_the_port(
    settings: Settings, client_address: str
) -> None:
    with TestClient(create_app(settings), client=(client_address, 50000)) as client:
        assert client.get("/pipelines").status_code == 401


@pytest.mark.parametrize(
    ("fields", "tokens_exist", "code"),
    [
        ({}, False, "NOT_LOOPBACK"),
        ({"trusted_proxies": ("10.0.0.1/32",)}, False, "NOT_LOOPBACK"),
        ({}, True, "NO_TLS"),
    ],
)
@pytest.mark.promise("H20")
def test_another_address_needs_tokens_and_encryption(
    settings: Settings, connection: Connection, fields: dict[str, Any], tokens_exist: bool, code: str
) -> None:
    if tokens_exist:
        issue(settings, connection, Role.ADMIN)
    with pytest.raises(ConfigError) as refusal:
        addresses.listen(exposed(settings, **fields))
    assert refusal.value.code == code


# Host


@pytest.mark.promise("K3")
@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_page_under_another_name_reaches_nothing(settings: Settings, host: str) -> None:
    own = settings.model_copy(update={"allowed_hosts": ALLOWED})
    status, body = asked(own, host=host)
    assert status in (400, 421), body
    assert b"WRONG_HOST" in body or b"BAD_HOST" in body
    status, _ = asked(
        own, host=host, method="POST", path="/pipelines/x/run", headers=[(b"origin", b"http://" + host.encode())]
    )
    assert status in (400, 421)
    assert asked(own, host=host, path="/health/live")[0] in (400, 421)


@pytest.mark.promise("K3")
@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_loopback_names_and_the_names_of_the_settings_are_served(settings: Settings, host: str) -> None:
    own = settings.model_copy(update={"allowed_hosts": ALLOWED})
    assert asked(own, host=host, path="/health/live")[0] == 200


@pytest.mark.promise("K3")
def test_no_host_and_two_hosts_are_refused(settings: Settings) -> None:
    assert asked(settings, host=None)[0] == 400
    assert asked(settings, host="localhost", headers=[(b"host", b"localhost")])[0] == 400


def test_an_address_is_a_name_that_no_one_can_point_elsewhere(settings: Settings) -> None:
    outside = exposed(settings, trusted_proxies=("127.0.0.1/32",))
    for host, status in (("192.0.2.1:8000", 200), ("[2001:db8::1]", 200), ("evil.example", 421)):
        assert asked(outside, host=host, path="/health/live")[0] == status


def asked(
    settings: Settings,
    *,
    host: str | None = "localhost",
    method: str = "GET",
    path: str = "/pipelines",
    headers: list[tuple[bytes, bytes]] | None = None,
    query: bytes = b"",
    kind: str = "http",
    received: Sequence[Message] = (),
) -> tuple[int, bytes]:
    """Status and body of a request exactly as it is given, without a client that corrects it."""
    sent: list[Message] = []
    arriving = iter(received or [{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        if (message := next(arriving, None)) is None:
            await asyncio.Event().wait()
        return message or {}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            await app(
                {
                    "type": kind,
                    "asgi": {"version": "3.0"},
                    "http_version": "1.1",
                    "method": method,
                    "scheme": "http",
                    "path": path,
                    "raw_path": path.encode(),
                    "query_string": query,
                    "root_path": "",
                    "headers": [*([(b"host", host.encode("latin1"))] if host is not None else []), *(headers or [])],
                    "client": ("127.0.0.1", 50000),
                    "server": ("127.0.0.1", 8000),
                },
                receive,
                send,
            )

    asyncio.run(run())
    status = next((message["status"] for message in sent if message["type"] == "http.response.start"), 0)
    return status, b"".join(message.get("body", b"") for message in sent)


# Headers, targets, addresses


@pytest.mark.promise("H1")
def test_two_authorization_headers_are_refused_and_the_scheme_has_no_case(
    settings: Settings, connection: Connection
) -> None:
    token = issue(settings, connection, Role.VIEWER).encode()
    for headers, status in (
        ([(b"authorization", b"bearer " + token)], 200),
        ([(b"authorization", b"BEARER   " + token + b" ")], 200),
        ([(b"authorization", b"Bearer " + token)] * 2, 401),
        ([(b"authorization", b"Bearer x"), (b"authorization", b"Bearer " + token)], 401),
        ([(b"authorization", b"Bearer\t" + token)], 401),
        ([(b"authorization", b"Bearer " + token + b"\t")], 401),
        ([(b"authorization", b"Bearer " + token + b"\x00")], 401),
        ([(b"authorization", b"Bearer " + token + b"\xff")], 401),
        ([(b"proxy-authorization", b"Bearer " + token)], 401),
        ([(b"cookie", b"token=" + token)], 401),
        ([(b"x-forwarded-user", b"admin")], 401),
    ):
        assert asked(settings, headers=headers)[0] == status, headers


def test_a_client_that_leaves_in_the_middle_of_its_body_starts_nothing(
    settings: Settings, connection: Connection
) -> None:
    genres = {
        "source_query": "SELECT id, name FROM content.genre",
        "target_table": "analytics.g",
        "key_columns": ["id"],
    }
    create(connection, settings, name="genres", **genres)
    half: list[Message] = [{"type": "http.request", "body": b"", "more_body": True}, {"type": "http.disconnect"}]
    assert asked(settings, method="POST", path="/pipelines/genres/run", received=half) == (0, b"")
    assert pipelines.get(connection, "genres").status is Status.IDLE


@pytest.mark.promise("K8")
def test_a_body_that_does_not_arrive_in_time_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "MAX_SECONDS", 0.1)
    half: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]
    status, body = asked(settings, method="POST", path="/pipelines", received=half)
    assert (status, b"BODY_TOO_SLOW" in body) == (408, True)


@pytest.mark.promise("H1")
def test_the_body_of_a_stranger_is_not_read(settings: Settings, connection: Connection) -> None:
    issue(settings, connection, Role.VIEWER)
    endless: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]
    assert asked(settings, method="POST", path="/pipelines", received=endless)[0] == 401


def test_a_token_in_an_address_is_refused(settings: Settings, connection: Connection) -> None:
    token = issue(settings, connection, Role.ADMIN).encode()
    headers = [(b"authorization", b"Bearer " + token)]
    for query in (b"access_token=" + token, b"token=x", b"limit=5&TOKEN=x", b"after=" + token):
        status, body = asked(settings, query=query, headers=headers)
        assert (status, b"TOKEN_IN_URL" in body, token in body) == (400, True, False)
    assert asked(settings, path=f"/pipelines/{token.decode()}", headers=headers)[0] == 400
    assert asked(settings, query=b"limit=5", headers=headers)[0] == 200


@pytest.mark.promise("H2", "H19")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "//api/v1/pipelines"),
        ("GET", "/api/v1//pipelines"),
        ("GET", "/api/v1/../v1/pipelines"),
        ("GET", "/api/v1/./pipelines"),
        ("GET", "/API/v1/pipelines"),
        ("GET", "/pipelines;x=1"),
        ("GET", "/pipelines//"),
        ("GET", "/health/live/../../pipelines"),
        ("GET", "/health/live/x"),
        ("GET", "/health/live\n"),
        ("GET", "/pipelines\n"),
        ("HEAD", "/pipelines"),
        ("OPTIONS", "/pipelines"),
        ("TRACE", "/pipelines"),
        ("get", "/pipelines"),
        ("CONNECT", "/pipelines"),
    ],
)
def test_no_spelling_of_a_path_or_method_passes_the_table(
    settings: Settings, connection: Connection, method: str, path: str
) -> None:
    token = issue(settings, connection, Role.VIEWER).encode()
    assert asked(settings, method=method, path=path)[0] == 401
    assert asked(settings, method=method, path=path, headers=[(b"authorization", b"Bearer " + token)])[0] in (404, 405)


@pytest.mark.promise("H2")
def test_a_slash_at_the_end_changes_no_role(settings: Settings, connection: Connection) -> None:
    token = issue(settings, connection, Role.VIEWER).encode()
    headers = [(b"authorization", b"Bearer " + token)]
    assert asked(settings, path="/pipelines/", headers=headers)[0] == 200
    assert asked(settings, path="/pipelines/")[0] == 401
    assert asked(settings, method="POST", path="/pipelines/x/run/", headers=headers)[0] == 403
    assert asked(settings, path="/audit/", headers=headers)[0] == 403


def test_absolute_targets_and_websockets_are_refused(settings: Settings) -> None:
    assert asked(settings, path="http://evil.example/pipelines")[0] == 400
    assert asked(settings, path="*", method="OPTIONS")[0] == 400
    assert asked(settings, kind="websocket") == (0, b"")


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "address"),
    [
        ((), "127.0.0.1", "203.0.113.9", "127.0.0.1"),
        (("10.0.0.0/8",), "127.0.0.1", "203.0.113.9", "127.0.0.1"),
        (("10.0.0.0/8",), "10.1.1.1", "203.0.113.9", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "203.0.113.9, 10.2.2.2", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "203.0.113.9:1234", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "[2001:db8::9]:1234", "2001:db8::9"),
        (("10.0.0.0/8",), "10.1.1.1", "203.0.113.9, nonsense", "10.1.1.1"),
        (("10.0.0.0/8",), "10.1.1.1", "nonsense, 203.0.113.9", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "", "10.1.1.1"),
        (("10.0.0.0/8",), "::ffff:10.1.1.1", "203.0.113.9", "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.1.1", "10.9.9.9", "10.9.9.9"),
        (("2001:db8::/32",), "2001:db8::1", "203.0.113.9", "203.0.113.9"),
    ],
)
def test_only_a_trusted_proxy_says_who_the_client_is(
    settings: Settings, connection: Connection, proxies: tuple[str, ...], peer: str, forwarded: str, address: str
) -> None:
    headers = bearer(issue(settings, connection, Role.VIEWER)) | {"X-Forwarded-For": forwarded}
    own = settings.model_copy(update={"trusted_proxies": proxies})
    with TestClient(create_app(own), client=(peer, 50000)) as client:
        assert client.get("/whoami", headers=headers).json()["address"] == address


def test_a_client_that_passes_by_the_proxy_is_refused(settings: Settings, connection: Connection) -> None:
    headers = bearer(issue(settings, connection, Role.VIEWER))
    behind = exposed(settings, trusted_proxies=("10.0.0.1/32",))
    for peer, status in (("10.0.0.1", 200), ("10.0.0.2", 403), ("127.0.0.1", 200)):
        with TestClient(create_app(behind), client=(peer, 50000)) as client:
            assert client.get("/whoami", headers=headers).status_code == status
            assert client.get("/whoami").status_code == (401 if status == 200 else 403)


# Pages


@pytest.mark.promise("H14")
def test_documentation_and_metrics_need_a_token_once_there_is_one(
    client: TestClient, settings: Settings, connection: Connection
) -> None:
    assert client.get("/openapi.json").json()["security"] == [{}, {"bearer": []}]
    token = issue(settings, connection, Role.VIEWER)
    wait_until(lambda: client.get("/docs").status_code == 401, what="the first token")
    assert client.get("/docs").headers.get_list("www-authenticate")[1].startswith("Basic realm=")
    assert client.get("/metrics").headers.get_list("www-authenticate") == ["Bearer"]
    assert client.get("/health/live").json() == {"status": "ok"}
    for path in ("/docs", "/docs/docs.js", "/openapi.json", "/"):
        assert client.get(path).status_code == 401
        assert client.get(path, auth=("any", token)).status_code == 200
        assert client.get(path, auth=("any", "wrong")).status_code == 401
        assert client.get(path, headers=bearer(token)).status_code == 200
    assert client.get("/metrics", headers=bearer(token)).status_code == 200
    assert client.get("/pipelines", auth=("any", token)).status_code == 401
    schema = client.get("/openapi.json", headers=bearer(token)).json()
    assert schema["security"] == [{"bearer": []}]
    assert schema["paths"]["/api/v1/health/live"]["get"]["security"] == []
    run = schema["paths"]["/api/v1/pipelines/{id}/run"]["post"]
    assert run["description"].endswith("Role: operator.")
    assert {"401", "403"} <= set(run["responses"])


# Wrong tokens in numbers


@pytest.mark.promise("H1")
def test_wrong_tokens_are_slowed_down_and_valid_ones_are_not(
    client: TestClient, settings: Settings, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    good = bearer(issue(settings, connection, Role.VIEWER))
    wait_until(lambda: client.get("/whoami", headers=good).json().get("role") == "viewer", what="the token")

    def seconds(headers: dict[str, str], status: int) -> float:
        begin = time.monotonic()
        assert client.get("/whoami", headers=headers).status_code == status
        return time.monotonic() - begin

    with caplog.at_level(logging.WARNING):
        for _ in range(access.FREE_ATTEMPTS + 1):
            client.get("/whoami", headers=bearer(new_token()))
        slow = seconds(bearer(new_token()), 401)
    assert slow >= access.STEP_SECONDS
    assert seconds(good, 200) < slow
    # waiting for the token may have failed several times, too
    logged = [vars(record)["failures"] for record in caplog.records if record.message == "wrong access token"]
    assert logged in ([1], [1, 10], [1, 10, 100])


def test_the_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "STEP_SECONDS", 0.001)
    monkeypatch.setattr(access, "MAX_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(access, "MAX_ADDRESSES", 100)

    async def attack() -> tuple[int, list[bool]]:
        failures = access.FailedLogins()
        for number in range(1000):
            await failures.slow_down(f"10.0.{number >> 8 & 255}.{number & 255}")
        for number in range(300):
            await failures.slow_down(f"2001:db8::{number:x}")
        at_once = await asyncio.gather(*(failures.slow_down("192.0.2.1") for _ in range(100)))
        return len(failures._failures), at_once  # pyright: ignore[reportPrivateUsage]

    remembered, at_once = asyncio.run(attack())
    assert remembered == access.MAX_ADDRESSES
    assert at_once.count(True) == access.FREE_ATTEMPTS + access.MAX_WAITING_OF_ADDRESS
