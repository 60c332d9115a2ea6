"""The console of a real API process: its address, logins, and websockets as a browser opens them."""

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Page
from websockets.sync.client import ClientConnection, connect

from tests.helpers.processes import Started, environment, free_port, started
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until

COOKIE = "vitrine_console"


@dataclass(frozen=True)
class Site:
    """An API process with its console."""

    port: int
    process: Started

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def console(self) -> str:
        return f"{self.address}/console"

    def post(self, path: str, data: dict[str, str] | None = None, **headers: str) -> httpx.Response:
        """A form as a page of the console itself sends it, unless the headers say otherwise."""
        given = {"Origin": self.address} | headers
        return httpx.post(f"{self.console}{path}", data=data or {}, headers=given, timeout=20)

    def log_in(self, token: str) -> str:
        """The id of a new session, as the cookie has it."""
        answer = self.post("/login", {"token": token})
        assert answer.status_code == 303, answer.text
        return answer.cookies[COOKIE]

    def get(self, path: str = "", *, session: str | None = None, **headers: str) -> httpx.Response:
        cookies = {COOKIE: session} if session else {}
        given = {"Accept": "text/html"} | headers
        return httpx.get(f"{self.address}{path}", cookies=cookies, headers=given, timeout=20)

    def page_id(self, session: str | None = None) -> str:
        """Builds a page; the id with which its browser would open the websocket."""
        answer = self.get("/console", session=session)
        assert answer.status_code == 200, answer.text
        found = re.search(r"'client_id': '([0-9a-f-]+)'", answer.text.replace('"', "'"))
        assert found is not None
        return found[1]

    def socket(
        self, page: str, *, session: str | None = None, origin: str | None = None, without_origin: bool = False
    ) -> ClientConnection:
        """A websocket of this page; an error if it is refused."""
        cookie = {"Cookie": f"{COOKIE}={session}"} if session else {}
        return connect(
            f"ws://127.0.0.1:{self.port}/console/_nicegui_ws/socket.io/?client_id={page}&EIO=4&transport=websocket",
            origin=None if without_origin else origin or self.address,  # type: ignore[arg-type]
            additional_headers=cookie,
            open_timeout=20,
        )


@contextmanager
def served(url: str, folder: Path, *, port: int | None = None, new: bool = False, **variables: str) -> Generator[Site]:
    """A real API process with the console; `new`: one that has imported nothing before."""
    number = port or free_port()
    env = environment(url, VITRINE_API_PORT=str(number), **variables)
    env.pop("PYTEST_CURRENT_TEST", None)  # NiceGUI behaves otherwise in tests
    with started(["api"], folder, env, new=new) as process:
        wait_until(lambda: get(number, "/health/live")[0] == 200, timeout=60, what="the start of the API")
        yield Site(number, process)


def enter(page: Page, site: Site, session: str) -> None:
    """Gives the browser the cookie of a session."""
    page.context.add_cookies(
        [
            {
                "name": COOKIE,
                "value": session,
                "domain": "127.0.0.1",
                "path": "/console",
                "httpOnly": True,
                "sameSite": "Strict",
            }
        ]
    )


def is_open(socket: ClientConnection) -> bool:
    """Whether the server speaks on it: the first message of Engine.IO."""
    return json.loads(str(socket.recv(timeout=20))[1:])["upgrades"] == []
