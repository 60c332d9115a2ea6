"""Messages to the webhook, sent from a thread of their own: a receiver never delays a run."""

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any, Literal

import httpx

from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import filters, history
from vitrine.store.history import Notification

log = logging.getLogger(__name__)

Format = Literal["json", "slack"]

SIGNATURE = "X-Vitrine-Signature"
DELIVERY = "X-Vitrine-Delivery"
EVENT = "X-Vitrine-Event"

_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def message_text(message: Notification) -> str:
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


def message_body(message: Notification, form: Format) -> bytes:
    """The body of the request, in UTF-8."""
    text = message_text(message)
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


def message_headers(message: Notification, body: bytes, secret: str | None) -> dict[str, str]:
    """The id of the message, which stays the same when it is sent again, and the signature of its body."""
    headers = {"Content-Type": "application/json; charset=utf-8", DELIVERY: str(message.id), EVENT: message.event}
    if secret:
        headers[SIGNATURE] = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return headers


TIMEOUT_SECONDS = 10.0
HIDDEN = timedelta(minutes=1)
"""How long other senders do not see a message; longer than one attempt takes."""

DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 5, 15, 60, 300, 900))
"""Before each further attempt; the last one repeats until the message is too old."""

STALE_SECONDS = 15.0
"""How often marts are checked for their age."""

RECONNECT_SECONDS = 5.0


def start_notifier(settings: Settings, url: str, stop: threading.Event) -> None:
    """Send messages to this address until `stop` is set."""
    threading.Thread(target=Notifier(settings, url, stop).run, name="notify", daemon=True).start()


class Notifier:
    """One sender. Several runners may have one each: a message has one sender at a time."""

    def __init__(
        self, settings: Settings, url: str, stop: threading.Event, *, delays: Sequence[timedelta] = DELAYS
    ) -> None:
        self._settings = settings
        self._url = url
        self._stop = stop
        self._delays = delays
        self._next_check = 0.0

    def run(self) -> None:
        """Work until a stop is requested; an unavailable database is waited for."""
        # no redirect is followed: the message is for the configured receiver only
        with httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            while not self._stop.is_set():
                try:
                    with connect(self._settings.store_url, name="vitrine:notify") as store:
                        while not self._stop.is_set():
                            self.work(store, client)
                            self._stop.wait(self._settings.poll_interval.total_seconds())
                except VitrineError as exc:
                    log.warning("cannot read messages: %s", exc, extra={"action": "webhook_waits", "code": exc.code})
                    self._stop.wait(RECONNECT_SECONDS)

    def work(self, store: Connection, client: httpx.Client) -> None:
        """Record marts that have become stale, then send everything that is due."""
        if time.monotonic() >= self._next_check:
            history.record_stale(store, filters.list_stale_crons(store, self._settings.zone))
            self._next_check = time.monotonic() + STALE_SECONDS
        while not self._stop.is_set() and (
            message := history.claim_notification(store, self._settings.webhook_events, hidden=HIDDEN)
        ):
            self._send(store, client, message)

    def _send(self, store: Connection, client: httpx.Client, message: Notification) -> None:
        """One attempt. If the process dies before its result is stored, the message is sent again with the same id."""
        extra = {"pipeline": message.pipeline, "message_id": str(message.id), "attempt": message.attempts}
        reason = self._refusal(client, message)
        if reason is None:
            history.record_sent(store, message)
            log.info("message sent: %s", message.event, extra={"action": "webhook_sent", **extra})
            return
        delay = self._delays[min(message.attempts, len(self._delays)) - 1]
        history.record_unsent(store, message, reason, delay=delay)
        log.warning(
            "message not sent: %s; the next attempt follows",
            reason,
            extra={"action": "webhook_failed", "seconds": delay.total_seconds(), **extra},
        )

    def _refusal(self, client: httpx.Client, message: Notification) -> str | None:
        """Why the receiver has not accepted the message; None if it has. The address is not a part of it."""
        secret = self._settings.webhook_secret
        body = message_body(message, self._settings.webhook_format)
        headers = message_headers(message, body, secret.get_secret_value() if secret else None)
        try:
            # the body of the answer is not read: it may be of any size
            with client.stream("POST", self._url, content=body, headers=headers) as answer:
                # guarantee: L8
                return None if answer.is_success else f"the receiver answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            if "CERTIFICATE_VERIFY_FAILED" in str(exc):
                return (
                    "the certificate of the receiver is not trusted; SSL_CERT_FILE can name the file of its authority"
                )
            return f"the receiver could not be reached ({type(exc).__name__})"
