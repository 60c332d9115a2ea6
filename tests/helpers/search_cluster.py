"""A target in a real cluster, reached through a proxy."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tests.helpers.running import create
from tests.helpers.search_case import Search
from tests.helpers.search_proxy import SearchProxy
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import checkpoint

NUMBERS = "SELECT id, note, modified FROM content.numbers"
INCREMENTAL: dict[str, Any] = {
    "mode": "incremental",
    "incremental_key": "modified",
    "options": {"horizon_margin": "0s"},
}

PATIENT_LEASE, SHORT_LEASE = timedelta(seconds=20), timedelta(seconds=2)
"""No request outlasts the lease, and a busy machine may need seconds to create an index."""


@dataclass
class Cluster:
    """One index name, and a source table `content.numbers`."""

    proxy: SearchProxy
    search: Search
    settings: Settings
    connection: Connection
    name: str

    def expiring_soon(self) -> "Cluster":
        """The same with a short lease, for tests that wait for its end."""
        return replace(self, settings=self.settings.model_copy(update={"lease_ttl": SHORT_LEASE}))

    def create(self, query: str = NUMBERS, **fields: Any) -> Pipeline:
        defaults: dict[str, Any] = {"target_table": f"es:{self.name}", "key_columns": ["id"], "source_query": query}
        return create(self.connection, self.settings, **defaults | fields)

    def fill(self, first: int, last: int) -> None:
        self.connection.execute(
            "INSERT INTO content.numbers (id, note) SELECT n, 'note ' || n FROM generate_series(%s::int, %s::int) n",
            [first, last],
        )

    def ids(self) -> list[str]:
        return sorted(self.search.documents(self.name), key=int)

    def notes(self) -> dict[str, str]:
        return {key: document["note"] for key, document in self.search.documents(self.name).items()}

    def rejected(self, pipeline: Pipeline) -> dict[str, str]:
        return {one["key"]: one["reason"] for one in checkpoint.list_open(self.connection, pipeline.id, limit=100)}


@contextmanager
def opened(url: str, name: str, settings: Settings, connection: Connection) -> Generator[Cluster]:
    connection.execute(
        "CREATE TABLE content.numbers (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL DEFAULT now())"
    )
    with SearchProxy.opened(url) as proxy:
        section = {"elasticsearch": {"url": proxy.url, "takeover_grace": "0s"}}
        patient = settings.model_copy(update={"connectors": section, "lease_ttl": PATIENT_LEASE})
        yield Cluster(proxy, Search(url), patient, connection, name)
