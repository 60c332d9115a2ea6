"""What an operation works with: settings, the store, who asks and with which role, and its entry in the audit log."""

import json
import os
import pwd
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from vitrine.core.status import PipelineId
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import Forbidden, TransientError
from vitrine.failpoints import reach
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import access
from vitrine.store.database import transaction
from vitrine.store.pipelines import Stored


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads definitions, status and history."""

    OPERATOR = "operator"
    """Also runs, pauses, resumes, resets and checks pipelines."""

    ADMIN = "admin"
    """Also changes definitions, which contain SQL, deletes pipelines, and manages tokens."""

    def includes(self, other: "Role") -> bool:
        ranked = list(Role)
        return ranked.index(self) >= ranked.index(other)


Via = Literal["api", "cli", "console"]

ANONYMOUS = "anonymous"
"""The name of a caller while no token has been created."""


class Caller(NamedTuple):
    """Who asks: for the check of the role, for the audit log, and as the trigger of the runs they request."""

    via: Via
    name: str  # of the token, or of the user of the operating system
    role: Role
    address: str | None = None  # None: the command line

    def require(self, role: Role) -> None:
        """Forbidden if the caller's role does not include this one."""
        if not self.role.includes(role):
            raise Forbidden(f"this needs the role {role}, and '{self.name}' has the role {self.role}")


def local_caller() -> Caller:
    """The user of this process, for commands that work on the database: its account decides what they may do."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # a container may run under a number without a name
        name = str(number)
    return Caller("cli", name, Role.ADMIN)


@dataclass(frozen=True)
class Context:
    """One call of an operator. Functions hold a connection while they use the store, not while they ask a source."""

    settings: Settings
    caller: Caller
    connection: Callable[[], AbstractContextManager[Connection]]


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Operation = Callable[Concatenate[Context, Arguments], Answer]

_roles: dict[Callable[..., Any], Role] = {}


def allowed(role: Role) -> Callable[[Operation[Arguments, Answer]], Operation[Arguments, Answer]]:
    """A service function that callers of this role, and of the roles that include it, may call."""

    def decorate(function: Operation[Arguments, Answer]) -> Operation[Arguments, Answer]:
        @wraps(function)
        def checked(context: Context, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            # guarantee: H2
            context.caller.require(role)
            return function(context, *args, **kwargs)

        _roles[checked] = role
        return checked

    return decorate


def role_of(operation: Callable[..., Any]) -> Role:
    """The role that a service function requires; KeyError if it checks none."""
    return _roles[operation]


TOO_MANY_CHECKS = "TOO_MANY_CHECKS"

CHECKS_AT_ONCE = 4
"""Checks use one parser, and connections to sources and targets."""

WAIT_SECONDS = 0.25
"""A call that waits occupies a thread that other calls need."""

# guarantee: H12
_slots = threading.BoundedSemaphore(CHECKS_AT_ONCE)


@contextmanager
def check_slot() -> Generator[None]:
    """One of the checks at once; TransientError if none is free in time."""
    take_slot()
    try:
        yield
    finally:
        give_slot_back()


def take_slot() -> None:
    """The same for a check that ends in another thread, which calls `give_back`."""
    if not _slots.acquire(timeout=WAIT_SECONDS):
        raise TransientError(
            f"{CHECKS_AT_ONCE} definitions are being checked already; try again in a moment", code=TOO_MANY_CHECKS
        )


def give_slot_back() -> None:
    _slots.release()


Facts = Mapping[str, Any]


class Named(Protocol):
    """A pipeline, or what is left of it."""

    @property
    def id(self) -> PipelineId: ...

    @property
    def name(self) -> str: ...


class Record:
    """The rows that a change will leave in the audit log."""

    def __init__(self, context: Context, connection: Connection, operation: str) -> None:
        self._caller = context.caller
        self._connection = connection
        self._operation = operation
        self._rows: list[dict[str, Any]] = []

    def add(
        self,
        pipeline: Named | None = None,
        *,
        before: Facts | None = None,
        after: Facts | None = None,
        operation: str | None = None,
    ) -> None:
        self._rows.append(
            {
                "operation": operation or self._operation,
                "pipeline": pipeline.name if pipeline else None,
                "pipeline_id": pipeline.id if pipeline else None,
                "before": _plain(before),
                "after": _plain(after),
            }
        )

    def add_change(self, old: Stored, new: Pipeline, *, operation: str | None = None, **facts: Any) -> None:
        """The fields that differ, before and after; no row if there is neither a difference nor another fact."""
        before, after = differing(old, new)
        if before or after or facts:
            self.add(new, before=before, after={**after, **facts}, operation=operation)

    def write(self) -> None:
        caller = self._caller
        for row in self._rows:
            access.insert_entry(
                self._connection,
                actor=caller.name,
                role=caller.role,
                via=caller.via,
                address=caller.address,
                **row,
            )


@contextmanager
def recorded(context: Context, connection: Connection, operation: str) -> Generator[Record]:
    """A transaction around a change: the change and its rows in the audit log are stored together, or not at all."""
    # guarantee: D17
    with transaction(connection):
        record = Record(context, connection, operation)
        yield record
        reach("before_audit")
        record.write()


def stored_facts(stored: Stored) -> Facts:
    """What is recorded of a pipeline that is created or deleted: every field that has not its default."""
    from vitrine.operations import changes  # slow to import, and `vitrine status` must start quickly

    return changes.flat(stored)


def differing(old: Stored, new: Stored) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields and options that have another value, before and after; a field with its default is null."""
    from vitrine.operations import changes

    found = changes.differences(old, new)
    return {one.field: one.old for one in found}, {one.field: one.new for one in found}


def _plain(facts: Facts | None) -> dict[str, Any] | None:
    """As JSON can hold them: ids and times as text."""
    return None if facts is None else json.loads(json.dumps(dict(facts), default=str))
