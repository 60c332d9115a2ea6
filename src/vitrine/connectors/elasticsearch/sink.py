"""The sink: documents by key, in an index per generation."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.documents import DocumentEncoder
from vitrine.connectors.elasticsearch.findings import findings_about
from vitrine.connectors.elasticsearch.generations import Found
from vitrine.connectors.elasticsearch.load import ElasticsearchLoad
from vitrine.connectors.elasticsearch.requests import Job, Requests
from vitrine.connectors.elasticsearch.row_checks import TYPES as CHECK_TYPES
from vitrine.connectors.elasticsearch.stored import StoredRows
from vitrine.connectors.elasticsearch.sweeping import sweep
from vitrine.connectors.elasticsearch.target import IndexTarget
from vitrine.connectors.elasticsearch.unit import ElasticsearchUnit
from vitrine.flow.jobs import SweepJob
from vitrine.flow.rows import (
    Batch,
    Column,
    Compare,
    Digest,
    Generation,
    Lane,
    Selection,
    Stamp,
    TargetInfo,
)


class ElasticsearchSink:
    """A Sink for `es:index`."""

    # rows of transforms are not converted to text first: their JSON and arrays are checked, those of PostgreSQL are not
    lanes = (Lane.TEXT, Lane.ROWS, Lane.FRAMES)

    def __init__(self, job: Job) -> None:
        options, definition = job.options, job.definition
        self._job = job
        self._requests = Requests(job.settings, str(job.target), job.lease, options.bulk_in_flight)
        self._target = IndexTarget(job, self._requests)
        self._target.definition_of(())  # refuses a wrong options.index
        self._encoder = DocumentEncoder(
            definition.key_columns,
            nulls="write" if options.write == "upsert" else options.nulls,
            cursor=definition.incremental_key,
            last_wins=definition.options.on_duplicate_key == "last",
            show_keys=job.run.show_keys,
            checks=definition.checks,
            target=str(job.target),
        )

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        with self._target.opened():
            found = self._target.generations.find()
        live = found.live
        self._target.live = live
        return TargetInfo(
            exists=live is not None,
            key=self._job.definition.key_columns or (live.mark.key if live and live.mark else ()),
            lanes=self.lanes,
            columns=live.columns if live else (),
            identity=live.uuid if live else None,
            findings=tuple(findings_about(self._job, found, self._target.definition_of(columns), columns)),
            checks=CHECK_TYPES,
            written=tuple(live.mark.columns) if live and live.mark else (),
            rewrites=True,
            guards_number=not self._job.options.strict_shrink,
        )

    def encode(self, batch: Batch) -> Batch:
        return replace(batch, payload=self._encoder.encode(batch))

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[ElasticsearchUnit]:
        with self._target.opened(writes=True):
            unit = ElasticsearchUnit(self._job, self._requests, stamp, self._target.live, self._target.prepare)
            yield unit
            unit.finish()

    def load(self, generation: Generation) -> ElasticsearchLoad:
        with self._target.opened():
            return ElasticsearchLoad(self._target, generation)

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest] | None:
        return None

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        with self._target.opened():
            found: Found = self._target.generations.find()
            live = found.live
            if live is not None:
                yield from StoredRows(self._requests, live, self._job.definition.key_columns).fetch(only, columns)

    def cancel(self) -> None:
        self._requests.cancel()

    def close(self) -> None:
        self._requests.close()

    @classmethod
    def sweep(cls, job: SweepJob[ElasticsearchSettings]) -> list[str]:
        return sweep(job)
