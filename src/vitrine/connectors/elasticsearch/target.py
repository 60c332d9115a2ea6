"""The index that a run writes to, and how it is created and extended."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vitrine.connectors.elasticsearch.definition import IndexDefinition, definition_of
from vitrine.connectors.elasticsearch.generations import Generations, Mark, StoredIndex
from vitrine.connectors.elasticsearch.requests import Job, Requests
from vitrine.flow.rows import Batch, Column


class IndexTarget:
    """What the units and loads of one sink share."""

    def __init__(self, job: Job, requests: Requests) -> None:
        self.job = job
        self.requests = requests
        self.generations = Generations(requests, job.target.name)
        self.live: StoredIndex | None = None  # found by `describe`, or made by this run
        self._waits_for_predecessor = job.run.taken_over

    @contextmanager
    def opened(self, *, writes: bool = False) -> Generator[None]:
        """Several requests, one after the other."""
        self.requests.reopen()
        self.requests.check()
        if writes and self._waits_for_predecessor:
            # a request of the run that died may still be in progress, and write a document that no newer one replaces
            self.job.lease.wait(self.job.settings.takeover_grace.total_seconds())
            self._waits_for_predecessor = False
        yield

    def adopt(self, index: StoredIndex) -> None:
        """A load was published: the units that follow write to it."""
        self.live = index

    def prepare(self, batch: Batch) -> StoredIndex:
        """The index for changes. One that vanished is not created again: its older documents would be missing."""
        if self.live is None:
            definition = self.definition_of(batch.columns)
            self.live = self.generations.create_live(definition, self.mark_of(batch.columns, definition))
        self.live = self.extended(self.live, batch.columns)
        return self.live

    def extended(self, index: StoredIndex, columns: Sequence[Column]) -> StoredIndex:
        """The index with mappings for all of these columns."""
        if index.mark is None or all(column.name in index.mark.columns for column in columns):
            return index
        types = {**index.mark.columns, **{column.name: column.type for column in columns}}
        definition = self.definition_of([Column(name, type_name) for name, type_name in types.items()])
        wanted = definition.mappings["properties"]
        added = {name: mapping for name, mapping in wanted.items() if name not in index.properties}
        mark = replace(index.mark, columns=types, fingerprint=definition.fingerprint)
        return self.generations.note(index, mark, added)

    def definition_of(self, columns: Sequence[Column]) -> IndexDefinition:
        return definition_of(columns, self.job.definition.key_columns, self.job.options.index)

    def mark_of(self, columns: Sequence[Column], definition: IndexDefinition) -> Mark:
        run = self.job.run
        return Mark(
            installation=run.installation,
            pipeline=str(run.pipeline_id),
            fingerprint=definition.fingerprint,
            columns={column.name: column.type for column in columns},
            key=self.job.definition.key_columns,
        )
