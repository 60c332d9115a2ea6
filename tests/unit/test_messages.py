"""Bodies, signatures and sentences of messages."""

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from vitrine.runner import webhook
from vitrine.store.history import Notification

ID = UUID("0b9d9b0e-8a53-4c3b-8f0b-2f9f3a1c7d55")
AT = datetime(2025, 1, 1, 12, tzinfo=UTC)


def message(event: str, **details: Any) -> Notification:
    return Notification(ID, event, "film_dim", details, AT, 1)


@pytest.mark.parametrize(
    ("event", "details", "text"),
    [
        (
            "failure",
            {"code": "CONFIG", "run_id": 7, "status": "FAILED"},
            "film_dim is FAILED: CONFIG. `vitrine status film_dim` shows the reason.",
        ),
        (
            "failure",
            {"code": "TRANSIENT", "run_id": 7, "status": "IDLE"},
            "film_dim is failing, and is retried by its schedule: TRANSIENT."
            " `vitrine status film_dim` shows the reason.",
        ),
        ("recovery", {"of": "failure", "run_id": 8}, "film_dim has recovered: run 8 succeeded."),
        ("recovery", {"of": "stale", "fresh_as_of": "2025-01-01"}, "film_dim is fresh again, as of 2025-01-01."),
        (
            "recovery",
            {"of": "stale", "fresh_as_of": "2025-01-01", "reason": "disabled"},
            "film_dim is disabled, so its mart is not checked for its age any more.",
        ),
        (
            "recovery",
            {"of": "stale", "fresh_as_of": "2025-01-01", "reason": "no_promise"},
            "film_dim has neither freshness nor a schedule now, so its mart is not checked for its age any more.",
        ),
        (
            "stale",
            {"fresh_as_of": None},
            "film_dim is stale: no run of it has succeeded yet. `vitrine status film_dim` shows why.",
        ),
        (
            "quarantine",
            {"rows": 3, "new": 2},
            "film_dim has 3 row(s) in quarantine, 2 of them new. `vitrine rejects film_dim` lists them.",
        ),
    ],
)
def test_a_message_says_what_happened_and_what_to_do_next(event: str, details: dict[str, Any], text: str) -> None:
    assert webhook.message_text(message(event, **details)) == text


def test_the_generic_form_has_every_fact_and_the_id_of_the_message() -> None:
    assert json.loads(webhook.message_body(message("recovery", of="failure", run_id=8), "json")) == {
        "id": str(ID),
        "event": "recovery",
        "pipeline": "film_dim",
        "at": "2025-01-01T12:00:00Z",
        "text": "film_dim has recovered: run 8 succeeded.",
        "details": {"of": "failure", "run_id": 8},
    }


def test_the_form_of_slack_is_one_escaped_text() -> None:
    odd = message("failure", code="<!channel> & more", status="FAILED")
    (text,) = json.loads(webhook.message_body(odd, "slack")).values()
    assert text.startswith("Vitrine: film_dim is FAILED: &lt;!channel&gt; &amp; more.")


def test_a_signature_covers_the_body_and_needs_a_secret() -> None:
    failure = message("failure", code="CONFIG", status="FAILED")
    body = webhook.message_body(failure, "json")
    expected = hmac.new(b"long-enough", body, hashlib.sha256).hexdigest()
    signed = webhook.message_headers(failure, body, "long-enough")
    assert (signed[webhook.SIGNATURE], signed[webhook.DELIVERY]) == (f"sha256={expected}", str(ID))
    assert webhook.SIGNATURE not in webhook.message_headers(failure, body, None)
