"""Builds and closes pages of the console, and waits until their elements are freed: `python -m … URL`.

A process of its own: NiceGUI has one application in a process, and all elements in it are counted.
"""

import asyncio
import gc
import sys

import httpx
from nicegui import Client
from nicegui.element import Element

from vitrine.api.app import create_app
from vitrine.console.app import attach
from vitrine.settings import Settings

PAGES = 20
SECONDS = 60


def elements() -> int:
    return sum(isinstance(one, Element) for one in gc.get_objects())


async def build_and_close(client: httpx.AsyncClient) -> None:
    for _ in range(PAGES):
        answer = await client.get("/console")
        assert answer.status_code == 200, answer.text
    assert elements() > 20 * PAGES
    while Client.instances:
        next(iter(Client.instances.values())).delete()
    async with asyncio.timeout(SECONDS):
        while elements():
            await asyncio.sleep(0.05)


async def main(url: str) -> None:
    app = create_app(Settings.model_validate({"database_url": url}))
    attach(app)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await build_and_close(client)


if __name__ == "__main__":
    gc.disable()
    asyncio.run(main(sys.argv[1]))
