"""The index that a run writes to, and how it is created and extended."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vitrine.connectors.elasticsearch.definition import IndexDefinition, definition_of
from vitrine.connectors.elasticsearch.generations import Generations, Mark, StoredIndex
from vitrine.connectors.elasticsearch.requests import Job, Requests
from vitrine.errors import ConfigError
from vitrine.flow.rows import Batch, Column


def missing_field(job: Job, name: str) -> str:
    remedy = "set options.on_schema_change: add_columns, or build the index again by a full run"
    return f"target {job.target} has no field '{name}'; {remedy}"


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
            # guarantee: A8
            self.job.lease.wait(self.job.settings.takeover_grace.total_seconds())
            self._waits_for_predecessor = False
        yield

    def adopt(self, index: StoredIndex) -> None:
        """A load was published: the units that follow write to it."""
        self.live = index

    def prepare(self, batch: Batch) -> StoredIndex:
        """The index for changes. One that vanished is not created again: its older documents would be missing."""
        if self.live is None:
            definition = self.checked_definition_of(batch.columns)
            self.live = self.generations.create_live(definition, self.mark_of(batch.columns, definition))
        self._refuse_new_columns(self.live, batch.columns)
        self.live = self.extended(self.live, batch.columns)
        return self.live

    def _refuse_new_columns(self, index: StoredIndex, columns: Sequence[Column]) -> None:
        """The columns that a transform returns are not known before it runs."""
        if index.mark is None or self.job.definition.options.on_schema_change != "fail":
            return
        if new := [column.name for column in columns if column.name not in index.mark.columns]:
            raise ConfigError(missing_field(self.job, new[0]), code="TARGET_SCHEMA")

    def extended(self, index: StoredIndex, columns: Sequence[Column]) -> StoredIndex:
        """The index with mappings for all of these columns."""
        if index.mark is None or all(column.name in index.mark.columns for column in columns):
            return index
        types = {**index.mark.columns, **{column.name: column.type for column in columns}}
        definition = self.checked_definition_of([Column(name, type_name) for name, type_name in types.items()])
        wanted = definition.mappings["properties"]
        added = {name: mapping for name, mapping in wanted.items() if name not in index.properties}
        mark = replace(index.mark, columns=types, fingerprint=definition.fingerprint)
        return self.generations.note(index, mark, added)

    def definition_of(self, columns: Sequence[Column]) -> IndexDefinition:
        return definition_of(columns, self.job.definition.key_columns, self.job.options.index)

    def checked_definition_of(self, columns: Sequence[Column]) -> IndexDefinition:
        """The same; ConfigError for columns that a transform returns and an index cannot have."""
        definition = self.definition_of(columns)
        for finding in definition.findings:
            if finding.fatal:
                raise ConfigError(finding.text, code=finding.code)
        return definition

    def mark_of(self, columns: Sequence[Column], definition: IndexDefinition) -> Mark:
        run = self.job.run
        return Mark(
            installation=run.installation,
            pipeline=str(run.pipeline_id),
            fingerprint=definition.fingerprint,
            columns={column.name: column.type for column in columns},
            key=self.job.definition.key_columns,
        )
