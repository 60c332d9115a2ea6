"""Slows down clients that send wrong tokens; valid tokens are never delayed."""

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network

from vitrine.hosts import parse_address

log = logging.getLogger(__name__)

FREE_ATTEMPTS = 5
STEP_SECONDS = 0.25
MAX_DELAY_SECONDS = 2.0
FORGOTTEN_AFTER_SECONDS = 300.0
MAX_ADDRESSES = 1024
MAX_WAITING = 64
MAX_WAITING_OF_ADDRESS = 8


@dataclass
class _Failures:
    count: int = 0
    last_at: float = 0.0
    waiting: int = 0


class FailedLogins:
    """Counts failures by address, for a limited number of addresses; the one that failed longest ago is forgotten."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._waiting = 0

    async def slow_down(self, address: str) -> bool:
        """Wait for longer after each failure of an address; False, without a wait, if too many wait already."""
        failures = self._note(_group(address))
        delay = min(MAX_DELAY_SECONDS, STEP_SECONDS * max(0, failures.count - FREE_ATTEMPTS))
        if delay == 0:
            return True
        if self._waiting >= MAX_WAITING or failures.waiting >= MAX_WAITING_OF_ADDRESS:
            return False
        self._waiting += 1
        failures.waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
            failures.waiting -= 1
        return True

    def _note(self, group: str) -> _Failures:
        now = time.monotonic()
        failures = self._failures.pop(group, None) or _Failures()
        if now - failures.last_at > FORGOTTEN_AFTER_SECONDS:
            failures.count = 0
        failures.count += 1
        failures.last_at = now
        self._failures[group] = failures
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        # one line for 1, 10, 100 … failures: a flood of wrong tokens must not flood the log
        if str(failures.count).rstrip("0") == "1":
            log.warning(
                "wrong access token",
                extra={"action": "login_failed", "address": group, "failures": failures.count},
            )
        return failures


def _group(address: str) -> str:
    """One client has a whole /64 of IPv6 addresses."""
    parsed = parse_address(address)
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address
