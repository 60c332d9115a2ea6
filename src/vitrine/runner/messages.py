"""What a webhook receives: the text and the body of a message."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Literal

from vitrine.store.notifications import Notification

Format = Literal["json", "slack"]

SIGNATURE = "X-Vitrine-Signature"
DELIVERY = "X-Vitrine-Delivery"
EVENT = "X-Vitrine-Event"

_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def text_of(message: Notification) -> str:
    """One sentence for people, with what to do next."""
    name, details = message.pipeline, message.details
    match message.event:
        case "failure":
            status = "FAILED" if details.get("status") == "FAILED" else "failing, and is retried by its schedule"
            return f"{name} is {status}: {details.get('code')}. `vitrine status {name}` shows the reason."
        case "recovery" if details.get("of") == "stale":
            return f"{name} {_end_of_stale(details)}."
        case "recovery":
            return f"{name} has recovered: run {details.get('run_id')} succeeded."
        case "stale":
            since = (
                f"its mart is as of {at}" if (at := details.get("fresh_as_of")) else "no run of it has succeeded yet"
            )
            return f"{name} is stale: {since}. `vitrine status {name}` shows why."
        case "quarantine":
            return (
                f"{name} has {details.get('rows')} row(s) in quarantine, {details.get('new')} of them new."
                f" `vitrine rejects {name}` lists them."
            )
        case event:
            return f"{name}: {event}"


def _end_of_stale(details: Mapping[str, Any]) -> str:
    match details.get("reason"):
        case "disabled":
            return "is disabled, so its mart is not checked for its age any more"
        case "no_promise":
            return "has neither freshness nor a schedule now, so its mart is not checked for its age any more"
        case _:
            return f"is fresh again, as of {details.get('fresh_as_of')}"


def body_of(message: Notification, form: Format) -> bytes:
    """The body of the request, in UTF-8."""
    text = text_of(message)
    if form == "slack":
        return _encoded({"text": f"Vitrine: {text.translate(_SLACK_ESCAPES)}"})
    at = message.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return _encoded(
        {
            "id": str(message.id),
            "event": message.event,
            "pipeline": message.pipeline,
            "at": at,
            "text": text,
            "details": message.details,
        }
    )


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def headers_of(message: Notification, body: bytes, secret: str | None) -> dict[str, str]:
    """The id of the message, which stays the same when it is sent again, and the signature of its body."""
    headers = {"Content-Type": "application/json; charset=utf-8", DELIVERY: str(message.id), EVENT: message.event}
    if secret:
        headers[SIGNATURE] = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return headers
