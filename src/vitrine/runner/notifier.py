"""Sends stored messages to the webhook, from a thread of its own: a receiver never delays a run."""

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import httpx

from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect
from vitrine.runner import messages
from vitrine.settings import Settings
from vitrine.store import notifications, selecting
from vitrine.store.notifications import Notification

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
HIDDEN = timedelta(minutes=1)
"""How long other senders do not see a message; longer than one attempt takes."""

DELAYS = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 5, 15, 60, 300, 900))
"""Before each further attempt; the last one repeats until the message is too old."""

STALE_SECONDS = 15.0
"""How often marts are checked for their age."""

RECONNECT_SECONDS = 5.0


def start(settings: Settings, url: str, stop: threading.Event) -> None:
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
            notifications.record_stale(store, selecting.list_stale_crons(store, self._settings.zone))
            self._next_check = time.monotonic() + STALE_SECONDS
        while not self._stop.is_set() and (
            message := notifications.claim(store, self._settings.webhook_events, hidden=HIDDEN)
        ):
            self._send(store, client, message)

    def _send(self, store: Connection, client: httpx.Client, message: Notification) -> None:
        """One attempt. If the process dies before its result is stored, the message is sent again with the same id."""
        extra = {"pipeline": message.pipeline, "message_id": str(message.id), "attempt": message.attempts}
        reason = self._refusal(client, message)
        if reason is None:
            notifications.record_sent(store, message)
            log.info("message sent: %s", message.event, extra={"action": "webhook_sent", **extra})
            return
        delay = self._delays[min(message.attempts, len(self._delays)) - 1]
        notifications.record_unsent(store, message, reason, delay=delay)
        log.warning(
            "message not sent: %s; the next attempt follows",
            reason,
            extra={"action": "webhook_failed", "seconds": delay.total_seconds(), **extra},
        )

    def _refusal(self, client: httpx.Client, message: Notification) -> str | None:
        """Why the receiver has not accepted the message; None if it has. The address is not a part of it."""
        secret = self._settings.webhook_secret
        body = messages.body_of(message, self._settings.webhook_format)
        headers = messages.headers_of(message, body, secret.get_secret_value() if secret else None)
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
