"""Pages of the console as browsers open them, without browsers: `python -m bench.page_clients ADDRESS COUNT [PATH …]`.

Each client loads a page, opens its websocket with the handshake of NiceGUI, answers pings, acknowledges messages every
three seconds and applies what it is sent, as the script in a browser does. Prints `open` when all are open. Then each
line of standard input is answered by a line of JSON; at the end of the input the sockets are closed.
"""

import ast
import asyncio
import html
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

ACKNOWLEDGE_SECONDS = 3.0
OPEN_SECONDS = 60.0
SOCKET = "/console/_nicegui_ws/socket.io/"
HOME = "/console"
ICON = "/console/files/icon.svg"

_QUERY = re.compile(r"query: (\{.*?\}),\n")
_ELEMENTS = re.compile(r"parseElements\(String\.raw`(.*?)`\)", re.DOTALL)
_METHOD = re.compile(r'return runMethod\((\d+), "(\w+)", (.*)\)', re.DOTALL)


@dataclass
class Page:
    """One open page: its elements as the browser has them."""

    address: str
    path: str = HOME
    elements: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    messages: int = 0
    received: int = 0  # characters
    tables: int = 0  # how often all rows of the table were sent, instead of those that have changed
    load_seconds: float = 0.0
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    _id: str = ""
    _next_message: int = 0

    async def live(self) -> None:
        """Until the server closes the socket, or the task is cancelled."""
        query = await self._load()
        parts = urlsplit(self.address)
        address = f"ws://{parts.netloc}{SOCKET}?{query}"
        async with connect(address, origin=Origin(self.address), max_size=None) as socket:
            acknowledging = asyncio.create_task(self._acknowledge(socket))
            try:
                with suppress(ConnectionClosed):
                    async for message in socket:
                        await self._handle(socket, str(message))
            finally:
                self.closed = True
                acknowledging.cancel()

    async def _load(self) -> str:
        """The page itself; what its script gives the socket as a query."""
        async with httpx.AsyncClient(timeout=OPEN_SECONDS) as client:
            await client.get(f"{self.address}{ICON}")  # connects, and imports what the first request of a process needs
            began = time.perf_counter()
            answer = await client.get(f"{self.address}{self.path}", headers={"Accept": "text/html"})
            self.load_seconds = time.perf_counter() - began
        assert answer.status_code == 200, answer.text[:200]
        query, elements = _QUERY.search(answer.text), _ELEMENTS.search(answer.text)
        assert query is not None
        assert elements is not None
        given: dict[str, Any] = ast.literal_eval(query[1])
        self.elements = json.loads(html.unescape(elements[1]))
        self._id, self._next_message = given["client_id"], int(given["next_message_id"])
        identity = {"document_id": str(uuid4()), "tab_id": str(uuid4()), "EIO": 4, "transport": "websocket"}
        return urlencode({**given, "implicit_handshake": "true", **identity})

    async def _handle(self, socket: ClientConnection, message: str) -> None:
        if message.startswith("0"):  # Engine.IO is open: connect the namespace of Socket.IO
            await socket.send("40")
        elif message.startswith("40"):
            self.opened.set()
        elif message == "2":
            await socket.send("3")
        elif message.startswith("42"):
            self.messages += 1
            self.received += len(message)
            self.apply(*json.loads(message[2:]))

    def apply(self, name: str, data: dict[str, Any]) -> None:
        self._next_message = int(data.pop("_id")) + 1
        if name == "update":
            for id, element in data.items():
                if element is None:
                    self.elements.pop(id, None)
                else:
                    self.elements[id] = element
                    self.tables += "outcomes" in element.get("props", {})
        elif name == "run_javascript" and (called := _METHOD.match(data["code"])) and called[2] == "patch":
            rows = self.elements[called[1]]["props"]["rows"]
            changed = {row["name"]: row for row in json.loads(called[3])[0]}
            self.elements[called[1]]["props"]["rows"] = [changed.get(row["name"], row) for row in rows]

    async def _acknowledge(self, socket: ClientConnection) -> None:
        acknowledged = -1
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(ACKNOWLEDGE_SECONDS)
                if acknowledged < self._next_message:
                    acknowledged = self._next_message
                    body = {"client_id": self._id, "next_message_id": acknowledged}
                    await socket.send(f"42{json.dumps(['ack', body])}")

    def shown(self) -> dict[str, Any]:
        """The counters and the rows of the overview."""
        properties = [one.get("props", {}) for one in self.elements.values()]
        counters = [one["counters"] for one in properties if "counters" in one]
        tables = [one["rows"] for one in properties if "outcomes" in one]
        return {
            "counters": {one["state"]: one["figure"] for one in counters[0]} if counters else {},
            "rows": tables[0] if tables else [],
        }


async def main(address: str, count: int, paths: Sequence[str]) -> None:
    pages = [Page(address, paths[number % len(paths)]) for number in range(count)]
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
    async with asyncio.TaskGroup() as tasks:
        living = [tasks.create_task(page.live()) for page in pages]
        async with asyncio.timeout(OPEN_SECONDS):
            for page in pages:
                await page.opened.wait()
        print("open", flush=True)
        while await lines.get():
            shown = [page.shown() for page in pages]
            state = {
                "equal": all(one == shown[0] for one in shown),
                "shown": shown[0],
                "messages": sum(page.messages for page in pages),
                "characters": sum(page.received for page in pages),
                "tables": sum(page.tables for page in pages),
                "load_seconds": [page.load_seconds for page in pages],
                "closed": sum(page.closed for page in pages),
            }
            print(json.dumps(state), flush=True)
        for one in living:
            one.cancel()


def _read_lines(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str]") -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    loop.call_soon_threadsafe(lines.put_nowait, "")


@dataclass(frozen=True)
class Clients:
    """The process of the clients, as another process uses it."""

    process: "subprocess.Popen[str]"

    def ask(self) -> dict[str, Any]:
        """What the first page shows, whether all show the same, and how much they have received."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("shown\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def opened(address: str, count: int, *paths: str) -> Generator[Clients]:
    """So many pages are open until the end of the block; `paths`: of these pages, in turn."""
    command = [sys.executable, "-m", "bench.page_clients", address, str(count), *paths]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n", "the pages could not be opened; see the error above"
            yield Clients(process)
        finally:
            process.stdin.close()
            process.wait(OPEN_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] or [HOME]))
