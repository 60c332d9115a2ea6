"""A slash at the end of a path makes no difference."""

from starlette.types import ASGIApp, Receive, Scope, Send


class TrailingSlash:
    """ASGI middleware: removes it before the route is chosen."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.endswith("/") and path != "/":
            scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)
