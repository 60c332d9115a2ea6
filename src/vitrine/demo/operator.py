"""The demo as a caller of the service: what it changes is in the audit log, like any other change."""

from contextlib import nullcontext

from vitrine.postgres import Connection
from vitrine.service.context import Context, local_caller
from vitrine.settings import Settings


def operator(store: Connection, settings: Settings) -> Context:
    """The user of this process, on an open connection, whose transaction the changes join."""
    return Context(settings, local_caller(), lambda: nullcontext(store))
