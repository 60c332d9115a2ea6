"""The rests of a run: cut short when it should end, and another pace taken when one is asked for."""

import logging
import threading
from collections.abc import Callable

from vitrine.errors import TransientError
from vitrine.flow import Outcome
from vitrine.model import Claim, with_pace_of
from vitrine.plan import PostgresPlan
from vitrine.status import Status
from vitrine.store import pipelines, runs
from vitrine.store.database import Link

log = logging.getLogger(__name__)


class Pacing:
    """What a run asks of the store about its pace. Heartbeats go on meanwhile, in their own thread."""

    def __init__(
        self,
        claim: Claim,
        store: Link,
        stop: threading.Event,
        interruption: Callable[[], Outcome | None],
    ) -> None:
        self._claim = claim
        self._store = store
        self._stop = stop
        self._interruption = interruption
        self._driven: PostgresPlan | None = None
        self._taken: int | None = None  # the version whose pace was taken last; None: that of the claim

    def drive(self, moving: PostgresPlan) -> None:
        """This plan's pace is the one that is changed."""
        self._driven = moving

    def rest(self, seconds: float) -> Outcome | None:
        """Wait so long, outside any transaction, then look: PAUSED, RELEASED or LeaseLost when the run should end."""
        self._stop.wait(seconds)
        try:
            status, version = pipelines.poll_run(self._store.connection(), self._claim)
        except TransientError:
            self._store.drop()
            return self._interruption()  # the store is away: the lease's own deadline is the judge
        self.take(version)
        return Outcome.PAUSED if status is Status.PAUSE_REQUESTED else self._interruption()

    def take(self, version: int | None) -> None:
        """Go on at the pace that is stored, if that was asked for; everything else stays as it was captured."""
        if self._driven is None or version in (None, self._taken):
            return
        self._taken = version
        store = self._store.connection()
        stored = pipelines.get(store, self._claim.pipeline_id).definition
        taken = with_pace_of(stored, self._claim.definition)
        self._driven.go_at(taken)
        runs.update_config(store, self._claim, taken)
        log.info("another pace taken", extra={"action": "config_reloaded", **self._claim.log_fields()})
