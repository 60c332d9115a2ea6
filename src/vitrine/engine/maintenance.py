"""Removes leftovers of loads from targets."""

import logging
from collections.abc import Iterator

from vitrine import plugins
from vitrine.errors import VitrineError
from vitrine.flow.jobs import Loads, SweepJob
from vitrine.plugins import Connector
from vitrine.settings import Settings

log = logging.getLogger(__name__)


def sweep_sinks(settings: Settings, installation: str, open_loads: Loads) -> Iterator[str]:
    """Remove the leftovers of every configured sink; yields their names. A sink that fails does not stop the others."""
    for connector in plugins.installed().values():
        try:
            yield from _sweep(connector, settings, installation, open_loads)
        except VitrineError as exc:
            log.warning(
                "could not remove leftovers of connector '%s': %s",
                connector.name,
                exc,
                extra={"action": "sweep_failed", "code": exc.code},
            )


def _sweep(connector: Connector, settings: Settings, installation: str, open_loads: Loads) -> list[str]:
    if connector.sink is None:
        return []
    section = settings.section(connector.name, connector.settings)
    if not getattr(section, "is_configured", True):
        return []
    sink = plugins.load_class(connector, connector.sink.factory)
    return list(sink.sweep(SweepJob(section, installation, settings.store_url, open_loads)))
