"""The memory of closed pages is freed."""

import asyncio
import gc

import httpx
from nicegui import Client
from nicegui.element import Element

from tests.helpers.pipelines import create
from vitrine.api.app import create_app
from vitrine.console.app import attach
from vitrine.postgres import Connection
from vitrine.settings import Settings

PAGES = 20


def elements() -> int:
    return sum(isinstance(one, Element) for one in gc.get_objects())


async def build_and_close(client: httpx.AsyncClient) -> None:
    for _ in range(PAGES):
        answer = await client.get("/console")
        assert answer.status_code == 200, answer.text
    assert elements() > 20 * PAGES
    while Client.instances:
        next(iter(Client.instances.values())).delete()
    async with asyncio.timeout(20):
        while elements():
            await asyncio.sleep(0.05)


def test_pages_that_were_closed_are_freed_without_waiting_for_the_heap_to_grow(
    settings: Settings, connection: Connection
) -> None:
    create(connection, "alpha")
    app = create_app(settings)
    attach(app)  # once in a process: NiceGUI has one application

    async def main() -> None:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
                await build_and_close(client)

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
