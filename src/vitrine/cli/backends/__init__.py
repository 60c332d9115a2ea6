"""Where a command works: on the database, or through the API of another machine."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrine.cli import building

if TYPE_CHECKING:
    from vitrine.cli.backends.protocols import Access, Checks, Control, Definitions, History, Sources
    from vitrine.settings import Settings


@dataclass(frozen=True)
class Backend:
    """What an operator can ask for, in groups; a command does not know which backend it has."""

    settings: "Settings"
    definitions: "Definitions"
    control: "Control"
    history: "History"
    checks: "Checks"
    sources: "Sources"
    access: "Access"


@contextmanager
def opened() -> Generator[Backend]:
    """The backend of this command: the API if `--api` or VITRINE_API_URL names one, otherwise the database."""
    settings = building.load_settings()
    if settings.api_url is not None:
        from vitrine.cli.backends.remote import remote_backend

        with remote_backend(settings, settings.api_url) as backend:
            yield backend
        return
    from vitrine.cli.backends.local import local_backend

    yield local_backend(building.service_settings(settings))
