"""What a request asks for."""

from dataclasses import dataclass, fields
from enum import StrEnum

from vitrine.ids import RequestId


class RequestKind(StrEnum):
    """What a request asks for. The store keeps it as text, so that a new kind needs no migration."""

    RUN = "run"
    FULL = "full"  # once, an incremental pipeline reads everything and removes what vanished at the source
    ROLLBACK = "rollback"
    BACKFILL = "backfill"  # a range of the cursor is read and written again; the checkpoint stays
    RECONCILE = "reconcile"  # the mart is compared with its source, and what differs is repaired if that is asked for
    REPLAY = "replay"  # the keys in quarantine are read and written again; the checkpoint stays
    RESEND = "resend"  # one key is read and written again; the checkpoint stays


RETURNING = frozenset({RequestKind.BACKFILL, RequestKind.RECONCILE, RequestKind.REPLAY, RequestKind.RESEND})
"""The kinds that leave the checkpoint alone: however they end, the pipeline returns to the status it had."""


@dataclass(frozen=True)
class RunOptions:
    """Options of one run request."""

    allow_shrink: bool = False
    backfill_from: str | None = None  # a backfill: the first value of the cursor
    backfill_to: str | None = None  # and the first one behind its last
    deep: bool = False  # a reconcile: down to the keys that differ
    repair: bool = False  # and these are corrected
    key: str | None = None  # a resend: the key, as that of a reject
    delete: bool = False  # and it is deleted from the target if the source does not have it

    def stored(self) -> dict[str, object]:
        """As the store keeps them; options that are not given are left out, because an older runner knows fewer."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


@dataclass(frozen=True)
class RunRequest:
    """A request that is waiting, running or paused."""

    id: RequestId
    kind: str = RequestKind.RUN  # a newer release may have stored a kind that this one does not know
    options: RunOptions = RunOptions()

    @property
    def label(self) -> str:
        """The kind in a sentence."""
        if self.kind == RequestKind.BACKFILL:
            return f"backfill from {self.options.backfill_from} to {self.options.backfill_to}"
        if self.kind == RequestKind.RECONCILE and (self.options.repair or self.options.deep):
            return "repair" if self.options.repair else "deep reconcile"
        return "full run" if self.kind == RequestKind.FULL else self.kind

    def equals(self, other: "RunRequest") -> bool:
        """Whether both ask for the same; their ids do not matter."""
        # guarantee: D9
        return (self.kind, self.options) == (other.kind, other.options)
