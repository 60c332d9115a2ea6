"""What a connector is given to build a source or a sink."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vitrine.core import keys
from vitrine.core.protocols import Lease
from vitrine.core.rows import Reject
from vitrine.core.status import PipelineId
from vitrine.definition.connectors import Target
from vitrine.definition.model import Definition, Mode, Options
from vitrine.errors import DataError

OptionsOf = TypeVar("OptionsOf")
SettingsOf = TypeVar("SettingsOf")


@dataclass(frozen=True)
class RunInfo:
    """The run a connector works for."""

    session: str  # name for sessions, so that they can be found and ended
    pipeline_id: PipelineId | None = None  # None: the definition is not stored
    installation: str = ""  # a sink marks what it creates with this id
    taken_over: bool = False  # the previous holder died: its last requests may still be in progress
    full_run: bool = False  # an incremental pipeline loads everything once
    show_keys: bool = True  # errors may quote the keys of rows
    log_fields: Mapping[str, object] = field(default_factory=dict[str, object])


class RejectPolicy:
    """What happens to rows that do not fit the target; one object per attempt, which sinks and sources call."""

    def __init__(self, target: str, options: Options, *, show_keys: bool = True) -> None:
        self._target = target
        self._options = options
        self._show_keys = show_keys
        self._count = 0
        self._lock = threading.Lock()  # source and sink work in different threads

    @property
    def room(self) -> int:
        """How many more rows may be quarantined."""
        return 0 if self._options.on_reject == "fail" else max(self._options.max_rejects - self._count, 0)

    def judge(self, reject: Reject) -> None:
        """Returns if the row may be quarantined; DataError otherwise."""
        # guarantee: E1
        if self._options.on_reject == "fail":
            which, reason = self._described(reject)
            raise DataError(f"{which} of {self._target}: {reason}; correct it, or set options.on_reject: quarantine")
        with self._lock:
            self._count += 1
            # guarantee: E2
            is_full = self._count > self._options.max_rejects
        if is_full:
            which, reason = self._described(reject)
            raise DataError(
                f"more than {self._options.max_rejects} rows do not fit {self._target}, the last is {which}: {reason};"
                " correct them, or raise options.max_rejects",
                code="TOO_MANY_REJECTS",
            )

    def _described(self, reject: Reject) -> tuple[str, str]:
        """The row and the reason, for an error: without the key if errors may not quote keys."""
        if self._show_keys:
            return f"row {keys.readable(reject.key)}", reject.reason
        reason = reject.reason
        for part in filter(None, keys.from_text(reject.key)):
            reason = reason.replace(part, "…")
        return "a row", reason


@dataclass(frozen=True)
class SourceJob(Generic[OptionsOf, SettingsOf]):
    """A source to build; typed by the connector's own options and settings."""

    definition: Definition
    options: OptionsOf
    settings: SettingsOf
    lease: Lease
    run: RunInfo
    url: str | None = None  # of the configured connection; None where the connector needs none
    rejects: RejectPolicy | None = None  # for rows that the source cannot deliver; None: each of them is an error


@dataclass(frozen=True)
class SinkJob(Generic[OptionsOf, SettingsOf]):
    """A sink to build; typed by the connector's own options and settings."""

    target: Target
    definition: Definition
    options: OptionsOf
    settings: SettingsOf
    lease: Lease
    run: RunInfo
    rejects: RejectPolicy
    store_url: str
    open_rejects: Collection[str] = ()  # keys in quarantine
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as the sink last stored them

    @property
    def rebuilds(self) -> bool:
        """Whether a load replaces the whole target."""
        return self.run.full_run or self.definition.mode is Mode.FULL


Loads = Callable[[], Collection[tuple[PipelineId, int]]]
"""The loads under construction, by pipeline and generation."""


@dataclass(frozen=True)
class SweepJob(Generic[SettingsOf]):
    """Leftovers to remove: rows staged by this installation for a load that is no longer under construction.

    `open_loads` is called after the leftovers are listed: a load is recorded in the store before anything is staged.
    """

    settings: SettingsOf
    installation: str
    store_url: str
    open_loads: Loads
