"""A load: a collection that is built aside, and shown at once."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from vitrine.core.checks import Results, RowCount, refuse_failed
from vitrine.core.protocols import LoadState
from vitrine.core.row_checks import count_result
from vitrine.core.rows import Batch, Column, Counts, Generation, LoadInfo, Stamp, Written
from vitrine.errors import DataError
from vitrine_memory.requests import Requests
from vitrine_memory.storage import StoredTarget
from vitrine_memory.unit import StagedUnit


@dataclass(frozen=True)
class Publication:
    """The load is visible: a publish has done its work when it opens."""

    result: Written
    transaction: None = None


class MemoryLoad:
    """One generation, in a collection of its own."""

    def __init__(self, requests: Requests, generation: Generation, published: Callable[[StoredTarget], None]) -> None:
        run = requests.job.run
        self._requests = requests
        self._storage = requests.storage
        self._published = published
        self._load = (str(run.pipeline_id), generation.number)
        self._collection = f"{run.pipeline_id}/{generation.number}"
        found = self._storage.target(requests.name)
        self._seen = found.collection if found else None  # what a publish replaces, and nothing else
        self._columns: tuple[Column, ...] = found.columns if found else ()
        if self._seen == self._collection:
            self.state = LoadState.PUBLISHED
        else:
            self.state = LoadState.STAGED if self._storage.is_staged(self._collection) else LoadState.ABSENT

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[StagedUnit]:
        with self._requests.opened():
            self._requests.check()
            installation = self._requests.job.run.installation
            self._storage.begin(self._collection, self._load, installation, stamp.version, stamp.sequence)
            self.state = LoadState.STAGED
            unit = StagedUnit(
                self._requests,
                self._note_columns,
                lambda documents: self._storage.stage(
                    self._requests.name, self._collection, documents, stamp.version, stamp.sequence
                ),
            )
            yield unit
            unit.finish()

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> Generator[Publication]:
        def check(staged: int, before: int, vanished: int) -> None:
            self._refuse_lost_rows(staged, info)
            self._refuse_shrinking(before, vanished, info)

        with self._requests.opened():
            self._requests.check()
            name, columns = self._requests.name, self._columns
            checked = self._checked(info) if info.checks and self.state is not LoadState.PUBLISHED else ()
            shown, reply = self._storage.publish(name, self._collection, self._seen, columns, check)
            self.state = LoadState.PUBLISHED
            self._published(shown)
            counts = Counts(written=reply.written, deleted=reply.existed)
            yield Publication(Written(counts, identity=shown.identity, checks=checked))

    def discard(self) -> None:
        with self._requests.opened():
            self._storage.discard(self._collection)

    def _checked(self, info: LoadInfo) -> Results:
        rows = [one.document or {} for one in self._storage.staged(self._collection)]
        single = [check for check in info.checks if not isinstance(check, RowCount)]
        results = self._requests.results(single, rows, {column.name: column.type for column in self._columns})
        before = None if self._seen is None else len(self._storage.documents(self._requests.name))
        counted = [count_result(check, len(rows), before) for check in info.checks if isinstance(check, RowCount)]
        return refuse_failed(self._requests.name, (*results, *counted))

    def _note_columns(self, batch: Batch) -> None:
        self._columns = batch.columns

    def _refuse_lost_rows(self, staged: int, info: LoadInfo) -> None:
        if staged < info.rows and not info.repeats:
            raise DataError(
                f"{staged} documents are staged, but {info.rows} were loaded: the key is not unique, or another session"
                " changed them; run again",
                code="STAGING_MISMATCH",
            )

    def _refuse_shrinking(self, before: int, vanished: int, info: LoadInfo) -> None:
        if info.max_delete_ratio is not None and vanished > before * info.max_delete_ratio:
            raise DataError(
                f"the source lacks {vanished} of the {before} rows of {self._requests.job.target}, more than"
                f" max_delete_ratio {info.max_delete_ratio:g} allows; if that is right, run once with allow_shrink",
                code="SHRINK_GUARD",
            )
