"""Whether a mart is fresh enough."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from vitrine_airflow.answers import Status
from vitrine_airflow.errors import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Freshness:
    """What a mart must contain: every change committed before this time, or before this long ago."""

    wanted: datetime | timedelta

    @classmethod
    def read(cls, max_age: float | None, as_of: str | None) -> Self:
        """One of both is given."""
        return cls(timedelta(seconds=max_age or 0) if as_of is None else _time(as_of))

    def is_met(self, status: Status) -> bool:
        """Logs the age of the mart if it is too old."""
        now = datetime.now(UTC)
        bound = self.wanted if isinstance(self.wanted, datetime) else now - self.wanted
        if status.fresh_as_of is not None and status.fresh_as_of >= bound:
            return True
        log.info(_sentence(status, now))
        return False


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"as_of is '{text}'; give a time such as {{{{ data_interval_end }}}}", code="AS_OF") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _sentence(status: Status, now: datetime) -> str:
    """How old the mart is, and why it does not become younger."""
    mart = f"the mart of pipeline '{status.pipeline}'"
    if status.fresh_as_of is None:
        sentence = f"{mart} has never been loaded"
    else:
        age = round((now - status.fresh_as_of).total_seconds())
        sentence = f"{mart} has the changes until {status.fresh_as_of.isoformat()}, {age} s ago"
    return f"{sentence}; {status.waiting}" if status.waiting else sentence
