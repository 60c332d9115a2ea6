"""Named points where a test can stop, kill or break a process; before `install`, reaching one is one dict lookup."""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from vitrine.errors import ConfigError, TransientError

NAMES = frozenset(
    {
        "after_claim",
        "after_horizon",
        "after_read",
        "after_sink_write",
        "before_checkpoint",
        "before_commit",
        "after_commit",
        "before_finish",
        "after_finish",
        "in_backoff",
        "staging_built",
        "before_alias",
        "before_audit",
        "before_swap",
        "after_swap",
        "in_copy",
        "heartbeat",
    }
)
_SPEC = re.compile(r"(?P<name>[a-z_]+)=(?P<action>kill|stop|raise|wait:(?P<file>[^,@]+))(@(?P<at>[0-9]+))?")
_POLL_SECONDS = 0.01


@dataclass
class _Point:
    """An armed failpoint."""

    action: str
    file: Path | None
    at: int | None  # None: every time it is reached
    reached: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


_points: dict[str, _Point] = {}


def install(text: str) -> None:
    """Arm the failpoints of a text such as `after_sink_write=kill@2,heartbeat=raise`; an empty text disarms all.

    `kill` and `stop` send this process SIGKILL or SIGSTOP, `raise` raises TransientError, `wait:FILE` creates
    FILE and continues once the test has removed it. `@n` means only the n-th time.
    """
    _points.clear()
    for part in filter(None, (part.strip() for part in text.split(","))):
        matched = _SPEC.fullmatch(part)
        if matched is None or matched["name"] not in NAMES:
            raise ConfigError(f"VITRINE_FAILPOINTS is not valid: '{part}' is not a failpoint", code="SETTINGS")
        file = Path(matched["file"]) if matched["file"] else None
        at = int(matched["at"]) if matched["at"] else None
        _points[matched["name"]] = _Point(matched["action"].partition(":")[0], file, at)


def reach(name: str) -> None:
    """The code has reached this failpoint."""
    point = _points.get(name)
    if point is None:
        return
    with point.lock:
        point.reached += 1
        due = point.at in (None, point.reached)
    if due:
        _act(name, point)


def _act(name: str, point: _Point) -> None:
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise TransientError(f"failpoint {name}")
        case _:
            _wait_for_removal(point.file)


def _wait_for_removal(file: Path | None) -> None:
    if file is None:
        return
    file.touch()
    while file.exists():
        time.sleep(_POLL_SECONDS)
