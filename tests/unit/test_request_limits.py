"""JSON bodies that two readers would understand differently."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from vitrine.api.problems import RequestLimits


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def post(body: str) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1:8000")]
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": headers,
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
    }
    asyncio.run(RequestLimits(_accept)(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.mark.promise("K12")
@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"name": "a", "name": "b"}', "name"),
        ('{"options": {"lookback": "1h", "lookback": "2h"}}', "lookback"),
        ('[{"x": 1, "\\u0078": 2}]', "x"),
    ],
)
def test_a_key_that_occurs_twice_in_a_body_is_refused(body: str, key: str) -> None:
    status, answer = post(body)
    assert status == 422
    assert answer["detail"] == f"the key '{key}' occurs twice in one object of the body; remove one of them"


def test_equal_keys_of_two_objects_are_accepted() -> None:
    assert post('{"a": {"x": 1}, "b": {"x": 1}}')[0] == 200
