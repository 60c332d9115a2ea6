"""What a request must pass before anything else: Host, authentication, authorisation, in this order."""

import base64
import binascii
import re
from collections.abc import Callable

import psycopg
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from vitrine.api import binding, permissions, problems
from vitrine.api.clients import Client, Proxies
from vitrine.api.connections import CALLER
from vitrine.api.failed_logins import FailedLogins
from vitrine.api.permissions import Permission
from vitrine.api.problems import Refused
from vitrine.api.tokens import Known, TokenReader
from vitrine.errors import VitrineError
from vitrine.hosts import HostRule
from vitrine.service.context import ANONYMOUS, Caller
from vitrine.service.roles import Role
from vitrine.settings import Settings

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z]+) +(?P<value>[\x21-\x7e]+) *")
_IN_URL = re.compile(rb"vtr_[0-9A-Za-z]{20,}|(?:^|[&;?])(?:access_)?token=", re.IGNORECASE)

UNAUTHENTICATED = (
    "give a valid access token in the header Authorization: Bearer; an administrator creates one with"
    " `vitrine token create`"
)


class Guard:
    """ASGI middleware, outside of every other one."""

    def __init__(
        self, app: ASGIApp, settings: Settings, tokens: TokenReader, on_error: Callable[[Exception], Response]
    ) -> None:
        self._app = app
        self._proxies = Proxies(settings.trusted_proxies)
        self._exposed = binding.is_exposed(settings)
        self._host_rule = HostRule(settings.allowed_hosts, self._exposed)
        self._speaks_tls = settings.tls_cert is not None
        self._tokens = tokens
        self._on_error = on_error
        self._failed_logins = FailedLogins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there is no WebSocket"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._admit(scope)
        except Refused as refused:
            await refused.response(scope, receive, send)
            return
        except (psycopg.OperationalError, VitrineError) as exc:
            await self._on_error(exc)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Refused, unless the request may proceed; its scope then has the caller and the address of the client."""
        headers = Headers(scope=scope)
        # guarantee: K3
        self._check_host(headers)
        self._check_target(scope)
        client = self._client(scope, headers)
        found = permissions.find(scope["method"], scope["path"])
        if found.permission and found.permission.role is None:
            return
        # guarantee: H19
        caller = await self._authenticate(headers, client, found.permission)
        if found.permission is None:
            raise Refused(_unknown(found.methods))
        if not caller.role.includes(role := found.permission.role or Role.ADMIN):
            raise Refused(
                problems.respond(403, "FORBIDDEN", f"this needs the role {role}, and your token has {caller.role}")
            )
        scope[CALLER] = caller

    def _check_host(self, headers: Headers) -> None:
        """Before anything else: a page under a foreign name must learn nothing, not even that a token is missing."""
        if refusal := self._host_rule.refuses(headers.getlist("host")):
            raise Refused(problems.respond(refusal.status, refusal.code, refusal.detail))

    def _check_target(self, scope: Scope) -> None:
        if not scope["path"].startswith("/"):
            raise Refused(problems.respond(400, "BAD_TARGET", "send a request target that begins with /"))
        if _IN_URL.search(scope.get("query_string", b"")) or _IN_URL.search(scope.get("raw_path") or b""):
            raise Refused(
                problems.respond(
                    400,
                    "TOKEN_IN_URL",
                    "a token does not belong in an address, which proxies and browsers record: send it in the header"
                    " Authorization, and revoke it if it was a real one",
                )
            )

    def _client(self, scope: Scope, headers: Headers) -> Client:
        peer = scope["client"][0] if scope.get("client") else ""
        client = self._proxies.client(peer, headers, https=scope["scheme"] == "https")
        scope["client"] = (client.address, 0)
        scope["scheme"] = "https" if client.https else "http"
        if self._exposed and not (self._speaks_tls or client.through_proxy or client.is_local):
            raise Refused(
                problems.respond(
                    403, "NOT_ENCRYPTED", "this connection is not encrypted; use the proxy in front of this API"
                )
            )
        return client

    async def _authenticate(self, headers: Headers, client: Client, permission: Permission | None) -> Caller:
        known = await self._known(permission)
        if not known.exist and self._serves_anonymously(client):
            return Caller("api", ANONYMOUS, Role.ADMIN, client.address)
        in_browser = permission is not None and permission.in_browser
        given = headers.getlist("authorization")
        text = _token_in(given[0], in_browser=in_browser) if len(given) == 1 else None
        token = known.find(text) if text else None
        if token is not None:
            self._tokens.note_use(token)
            return Caller("api", token.name, Role(token.role), client.address)
        if given and not await self._failed_logins.slow_down(client.address):
            raise Refused(
                problems.respond(
                    429,
                    "TOO_MANY_FAILURES",
                    "too many wrong tokens; wait, then try again",
                    headers={"Retry-After": "5"},
                )
            )
        refusal = problems.respond(401, "UNAUTHENTICATED", UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})
        if in_browser:
            refusal.headers.append("WWW-Authenticate", 'Basic realm="Vitrine: the password is a token"')
        raise Refused(refusal)

    async def _known(self, permission: Permission | None) -> Known:
        try:
            return await self._tokens.read()
        except (psycopg.OperationalError, VitrineError):
            # while the store is unavailable, only routes that show nothing of it answer
            if permission is None or permission.needs_store:
                raise
            return self._tokens.last or Known(exist=False, by_hash={}, read_at=0.0)

    def _serves_anonymously(self, client: Client) -> bool:
        """Only to this machine: never through a proxy, and never if the API is bound to another address."""
        # guarantee: H20
        if self._exposed or self._proxies or not client.is_local:
            return False
        if client.mentions_proxy:
            raise Refused(
                problems.respond(
                    403,
                    "PROXY_WITHOUT_TOKENS",
                    "the request has passed a proxy, and there are no access tokens yet; create one with `vitrine token"
                    " create`, and name the proxy in VITRINE_TRUSTED_PROXIES",
                )
            )
        return True


def _token_in(header: str, *, in_browser: bool) -> str | None:
    """The token of an Authorization header; None if it has none."""
    found = _CREDENTIALS.fullmatch(header)
    if found is None:
        return None
    match found["scheme"].lower():
        case "bearer":
            return found["value"]
        case "basic" if in_browser:
            try:
                return base64.b64decode(found["value"], validate=True).decode("ascii").partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return None
        case _:
            return None


def _unknown(methods: frozenset[str]) -> Response:
    if methods:
        return problems.respond_to_status(405, headers={"Allow": ", ".join(sorted(methods))})
    return problems.respond_to_status(404)
