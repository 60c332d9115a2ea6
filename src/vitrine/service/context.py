"""What a service function works with: settings, connections to the store, and who asks."""

import os
import pwd
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from vitrine.errors import Forbidden
from vitrine.postgres import Connection
from vitrine.service.roles import Role
from vitrine.settings import Settings

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
