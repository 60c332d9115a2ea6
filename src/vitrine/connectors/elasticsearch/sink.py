"""The sink: documents by key, in an index per generation, and loads into an index that is built aside."""

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from vitrine.connectors.elasticsearch import ElasticsearchSettings, encoding
from vitrine.connectors.elasticsearch.bulk import Action, Bulk, ElasticsearchUnit, Limits, Operations, StagedUnit
from vitrine.connectors.elasticsearch.checks import TYPES as CHECK_TYPES
from vitrine.connectors.elasticsearch.checks import StagedChecks, findings_about
from vitrine.connectors.elasticsearch.client import Job, Requests
from vitrine.connectors.elasticsearch.documents import DocumentEncoder, id_of
from vitrine.connectors.elasticsearch.index import (
    Found,
    Generations,
    IndexTarget,
    Mark,
    StoredIndex,
    remove_load,
    sweep,
)
from vitrine.connectors.elasticsearch.read import ANY_ORDER, Hits, Scan, StoredRows, chunks
from vitrine.core import keys
from vitrine.core.checks import Results
from vitrine.core.protocols import LoadState
from vitrine.core.rows import (
    Batch,
    Column,
    Compare,
    Counts,
    Digest,
    Generation,
    Lane,
    LoadInfo,
    Selection,
    Stamp,
    TargetInfo,
    Written,
)
from vitrine.definition.context import SweepJob
from vitrine.errors import DataError
from vitrine.failpoints import reach


def keep_last_good(
    requests: Requests, seen: StoredIndex, index: StoredIndex, rejected: Collection[str], bulk: Bulk, version: int
) -> None:
    """Copy what `index` lacks of the documents with these keys; both indexes are refreshed.

    One that the mappings of `index` refuse is left out: its row is in quarantine already.
    """
    if seen.mark is None or index.mark is None or seen.mark.key != index.mark.key:
        return  # with another key, an id means another row

    def found(place: StoredIndex, ids: Collection[str]) -> Hits:
        query = {"ids": {"values": list(ids)}}
        return [hit for hits in Scan(requests, place.name).documents(query, ANY_ORDER) for hit in hits]

    for some in chunks([id_of(keys.from_text(text)) for text in sorted(rejected)]):
        lacking = set(some) - {hit["_id"] for hit in found(index, some)}
        kept = found(seen, lacking)
        sources = [encoding.dumps(hit["_source"]).encode() for hit in kept]
        bulk.send(Operations(Action.INDEX, [hit["_id"] for hit in kept], sources, version))
    bulk.finish()


Units = list[list[int]]
"""Versions of saved units, as ranges of consecutive ones."""

_BEFORE_ANY: Units = [[0, 0]]
"""No document has this version: whatever was written before the first saved unit is not saved."""


@dataclass(frozen=True)
class Publication:
    """Readers see the load: a publish has done its work when it opens."""

    result: Written
    transaction: None = None


class ElasticsearchLoad:
    """One generation, in an index of its own."""

    def __init__(self, target: IndexTarget, generation: Generation) -> None:
        self._target = target
        self._generations: Generations = target.generations
        self._number = generation.number
        job = target.job
        found = self._generations.find()
        self._seen = found.live  # what a publish replaces, and nothing else
        self._index = found.load(job.run.installation, str(job.run.pipeline_id), generation.number)
        facts = job.facts if job.facts.get("load") == generation.number else None
        # an index without a saved unit was created by one that failed, and may have documents of it
        self._units: Units = facts["units"] if facts else [] if self._index is None else _BEFORE_ANY
        # a load that is continued has rejected some of the open ones, and which of them is not known here
        self._rejected: set[str] = set(job.open_rejects) if facts else set()
        self.state = LoadState.ABSENT if self._index is None else LoadState.STAGED
        if self._index is not None and self._seen is not None and self._index.name == self._seen.name:
            self.state = LoadState.PUBLISHED

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[StagedUnit]:
        target = self._target
        with target.opened(writes=True):
            unit = StagedUnit(target.job, target.requests, stamp, self._index, self._prepare)
            yield unit
            unit.finish()
            self._rejected.update(reject.key for reject in (*unit.result.rejects, *unit.refused))
            # the unit before this one was saved, or this one would not have started
            self._units = _with_version(self._units, stamp.version)
            unit.result = replace(unit.result, facts={"load": self._number, "units": self._units})

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> Generator[Publication]:
        with self._target.opened(writes=True):
            if self._index is None:
                raise DataError(
                    f"the staged documents of {self._target.job.target} were removed by another session; run again",
                    code="STAGING_MISMATCH",
                )
            written = Written()
            if self.state is not LoadState.PUBLISHED:
                written = self._publish(self._index, stamp, info)
            self._target.adopt(self._index)
            yield Publication(replace(written, identity=self._index.uuid, facts={}))

    def discard(self) -> None:
        with self._target.opened():
            if self._index is not None and self.state is LoadState.STAGED:
                remove_load(self._target.requests, self._index)

    # -- staging --------------------------------------------------------------------------------------------------

    def _prepare(self, batch: Batch) -> StoredIndex:
        target = self._target
        if self._index is None:
            definition = target.checked_definition_of(batch.columns)
            mark = replace(target.mark_of(batch.columns, definition), generation=self._number)
            self._index = self._generations.create_load(definition, mark, first=self._seen is None)
            self.state = LoadState.STAGED
        self._index = target.extended(self._index, batch.columns)
        return self._index

    # -- publication ----------------------------------------------------------------------------------------------

    def _publish(self, index: StoredIndex, stamp: Stamp, info: LoadInfo) -> Written:
        """Check, then show the load."""
        if _has_gaps(self._units) or self._rejected:  # an earlier publish may have kept documents of rejects
            self._remove_unsaved(index, stamp)
        staged = self._generations.count(index)
        self._refuse_mismatch(staged, info)
        before = self._generations.count(self._seen) if self._seen is not None else 0
        checked = self._check(index, info, staged, None if self._seen is None else before)
        if self._seen is not None and self._rejected:
            keep_last_good(self._target.requests, self._seen, index, self._rejected, self._bulk(index), stamp.version)
            staged = self._generations.count(index)
        vanished = self._vanished(index, staged, before)
        self._refuse_shrinking(before, vanished, info)
        mark = cast(Mark, index.mark)
        settings = self._target.definition_of(index.columns).settings_after_loading
        if self._seen is None:
            self._generations.ensure_guard(mark)
        reach("before_alias")
        self._index = self._generations.publish(index, self._seen, settings, replace(mark, published=stamp.version))
        self.state = LoadState.PUBLISHED
        job = self._target.job
        self._generations.remove_replaced(job.options.keep_generations, job.run.installation)
        return Written(Counts(written=staged, deleted=vanished), checks=checked)

    def _check(self, index: StoredIndex, info: LoadInfo, staged: int, before: int | None) -> Results:
        if not info.checks:
            return ()
        return StagedChecks(self._target.job, self._target.requests, index).results(info.checks, staged, before)

    def _remove_unsaved(self, index: StoredIndex, stamp: Stamp) -> None:
        """Documents of units that failed: their repetition may have read other rows."""
        bulk = self._bulk(index)
        self._generations.count(index)  # a search sees only what was refreshed
        for hits in Scan(self._target.requests, index.name).versions():
            unsaved = [hit["_id"] for hit in hits if not _is_saved(hit["_version"], self._units)]
            if unsaved:
                bulk.send(Operations(Action.DELETE, unsaved, version=stamp.version))
        bulk.finish()

    def _bulk(self, index: StoredIndex) -> Bulk:
        """For what the publish itself changes in the load; it rejects nothing."""
        requests, width = self._target.requests, len(index.mark.key if index.mark else ())
        limits = Limits.of(self._target.job, requests)
        return Bulk(requests, index.load_alias, limits, width, _ignore, index.ingest)

    def _refuse_mismatch(self, staged: int, info: LoadInfo) -> None:
        if staged != info.rows and not info.repeats:
            raise DataError(
                f"{staged} documents of {self._target.job.target} are staged, but {info.rows} were loaded: the key is"
                " not unique, or another session changed them; run again",
                code="STAGING_MISMATCH",
            )

    def _vanished(self, index: StoredIndex, staged: int, before: int) -> int:
        if self._seen is None or not before:
            return 0
        if not self._target.job.options.strict_shrink:
            return max(0, before - staged)
        requests, kept = self._target.requests, 0
        for hits in Scan(requests, self._seen.name).versions():
            ids = [hit["_id"] for hit in hits]
            for some in chunks(ids):
                query = {"ids": {"values": list(some)}}
                reply = requests.call(lambda client, query=query: client.count(index=index.name, query=query).body)
                requests.refuse_partial(reply)
                kept += requests.member(reply, "count")
        return before - kept

    def _refuse_shrinking(self, before: int, vanished: int, info: LoadInfo) -> None:
        if info.max_delete_ratio is not None and vanished > before * info.max_delete_ratio:
            raise DataError(
                f"the source lacks {vanished} of the {before} documents of {self._target.job.target}, more than"
                f" max_delete_ratio {info.max_delete_ratio:g} allows; if that is right, run once with allow_shrink",
                code="SHRINK_GUARD",
            )


def _ignore(reject: Any) -> None:
    """No row of the source is refused here."""


def _with_version(units: Units, version: int) -> Units:
    if units and units[-1][1] + 1 == version:
        return [*units[:-1], [units[-1][0], version]]
    return [*units, [version, version]]


def _has_gaps(units: Units) -> bool:
    """Whether a unit may have failed: versions count failed units as well."""
    return len(units) > 1


def _is_saved(version: int, units: Units) -> bool:
    return any(first <= version <= last for first, last in units)


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
