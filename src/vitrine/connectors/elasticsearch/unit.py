"""A unit: some bulk requests, the last of which is answered at its end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from vitrine.connectors.elasticsearch.bulk import Action, Bulk, Limits, Operations
from vitrine.connectors.elasticsearch.documents import Documents
from vitrine.connectors.elasticsearch.generations import StoredIndex
from vitrine.connectors.elasticsearch.ids import key_of
from vitrine.connectors.elasticsearch.requests import Job, Requests
from vitrine.connectors.elasticsearch.stored import StoredRows
from vitrine.flow import keys
from vitrine.flow.check_results import refuse_failed
from vitrine.flow.rows import NOTHING_WRITTEN, Batch, Counts, Key, Reject, Stamp, Written

Prepare = Callable[[Batch], StoredIndex]
"""Creates or extends the index for a batch."""


class ElasticsearchUnit:
    """The cluster acknowledges every document by itself, so there is no transaction that the checkpoint could join."""

    transaction = None

    def __init__(self, job: Job, requests: Requests, stamp: Stamp, index: StoredIndex | None, prepare: Prepare) -> None:
        self.result: Written = NOTHING_WRITTEN
        self.refused: tuple[Reject, ...] = ()  # rows that the source could not deliver
        self._job = job
        self._requests = requests
        self._stamp = stamp
        self._index = index
        self._prepare = prepare
        self._key = job.definition.key_columns
        self._bulk: Bulk | None = None

    def write(self, batch: Batch) -> None:
        documents = cast(Documents, batch.payload)  # `encode` has made it
        self._check(documents)
        self._index = self._prepare(batch)
        self.refused += batch.refused
        for reject in documents.refused:
            self._job.rejects.judge(reject)
        counts = self._counts(0, len(documents.refused)) + Counts(repeated=documents.repeated)
        self.result = replace(
            self.result,
            counts=self.result.counts + counts,
            rejects=(*self.result.rejects, *documents.refused),
            identity=self._identity(self._index),
        )
        if documents.ids:
            # guarantee: F13
            action = Action.INDEX if self._owns_documents else Action.UPSERT
            self._send(self._index, Operations(action, documents.ids, documents.sources, self._version))

    def _check(self, documents: Documents) -> None:
        """Before anything is sent: readers see each document at once."""
        if documents.checks:
            checked = refuse_failed(str(self._job.target), documents.checks)
            self.result = replace(self.result, checks=checked)

    def delete(self, keys: Sequence[Key]) -> None:
        if self._index is not None and keys:  # nothing can be deleted from a target that does not exist
            ids = StoredRows(self._requests, self._index, self._key).ids_of(keys)
            self._send(self._index, Operations(Action.DELETE, ids, version=self._version))

    def finish(self) -> None:
        """Wait for every reply: a unit that ends without an exception is acknowledged."""
        if self._bulk is None:
            return
        self._bulk.finish()
        outcome = self._bulk.outcome
        counts = self._counts(len(outcome.done), len(outcome.rejects)) + Counts(deleted=outcome.deleted)
        self.result = replace(
            self.result,
            counts=self.result.counts + counts,
            rejects=(*self.result.rejects, *outcome.rejects),
            healed=tuple(self._healed(outcome.done)),
        )

    def _healed(self, written: Sequence[str]) -> list[str]:
        if not self._job.open_rejects:
            return []
        texts = (keys.to_text(key_of(one, len(self._key))) for one in written)
        return [text for text in texts if text in self._job.open_rejects]

    @property
    def _owns_documents(self) -> bool:
        """Whether no other program changes them."""
        return self._job.options.write == "index"

    @property
    def _version(self) -> int | None:
        # guarantee: F7
        return self._stamp.version if self._owns_documents else None

    def _send(self, index: StoredIndex, operations: Operations) -> None:
        if self._bulk is None:
            limits = Limits.of(self._job, self._requests)
            judge, alias = self._job.rejects.judge, self._alias(index)
            self._bulk = Bulk(self._requests, alias, limits, len(self._key), judge, index.ingest)
        self._bulk.send(operations)

    def _alias(self, index: StoredIndex) -> str:
        return index.write_alias

    def _identity(self, index: StoredIndex) -> str | None:
        return index.uuid

    def _counts(self, written: int, rejected: int) -> Counts:
        return Counts(written=written, rejected=rejected)


class StagedUnit(ElasticsearchUnit):
    """The same for a load: readers see nothing of it before it is published.

    No other program writes to it, and documents of a failed unit are found by their version: an upsert writes whole
    documents with a version as well.
    """

    @property
    def _owns_documents(self) -> bool:
        return True

    def _check(self, documents: Documents) -> None:
        """Checks are carried out on all rows of the load, when it is published."""

    def _alias(self, index: StoredIndex) -> str:
        return index.load_alias

    def _identity(self, index: StoredIndex) -> str | None:
        return None

    def _counts(self, written: int, rejected: int) -> Counts:
        return Counts(staged=written, rejected=rejected)
