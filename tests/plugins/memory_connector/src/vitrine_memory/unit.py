"""A unit: some requests, the last of which is sent at its end."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vitrine.core.checks import refuse_failed
from vitrine.core.rows import NOTHING_WRITTEN, Batch, Counts, Key, Reject, Written
from vitrine_memory.requests import Put, Requests
from vitrine_memory.storage import Document


@dataclass(frozen=True)
class Documents:
    """Rows as they are sent; made ahead of the write by `encode`."""

    documents: tuple[Document, ...]
    repeated: int  # rows left out, because their key comes again

    @property
    def count(self) -> int:
        return len(self.documents)


class MemoryUnit:
    """The target acknowledges every request by itself, so there is no transaction that the checkpoint could join."""

    transaction = None

    def __init__(self, requests: Requests, prepare: Callable[[Batch], str | None], put: Put) -> None:
        self.result: Written = NOTHING_WRITTEN
        self._requests = requests
        self._prepare = prepare  # returns the identity of the target
        self._put = put
        self._waiting: list[Document] = []

    def write(self, batch: Batch) -> None:
        assert isinstance(batch.payload, Documents)
        self._check(batch, batch.payload)
        identity = self._prepare(batch)
        counts = self.result.counts + Counts(repeated=batch.payload.repeated)
        self.result = replace(self.result, counts=counts, identity=identity)
        self._add(batch.payload.documents)

    def _check(self, batch: Batch, documents: Documents) -> None:
        """Before anything is sent: each request is visible at once."""
        rows = [one.document for one in documents.documents if one.document is not None]
        checks = self._requests.job.definition.checks
        if checks and rows:
            results = self._requests.results(checks, rows, {column.name: column.type for column in batch.columns})
            checked = refuse_failed(self._requests.name, results)
            self.result = replace(self.result, checks=checked)

    def delete(self, keys: Sequence[Key]) -> None:
        self._add([Document(key, None) for key in keys])

    def finish(self) -> None:
        """Send what is left: a unit that ends without an exception is acknowledged."""
        if self._waiting:
            self._send(self._waiting)

    def _add(self, documents: Sequence[Document]) -> None:
        size = self._requests.job.options.memory_request_rows
        self._waiting += documents
        while len(self._waiting) > size:
            request, self._waiting = self._waiting[:size], self._waiting[size:]
            self._send(request)

    def _send(self, documents: Sequence[Document]) -> None:
        self._requests.check()
        reply = self._put(documents)
        refused = dict(reply.refused)
        rejects = [self._reject(one, refused[one.key]) for one in documents if one.key in refused]
        written = ["/".join(one.key) for one in documents if one.document is not None and one.key not in refused]
        is_delete = any(one.document is None for one in documents)
        counts = Counts(deleted=reply.existed) if is_delete else self._counts(len(written), len(rejects))
        self.result = replace(
            self.result,
            counts=self.result.counts + counts,
            rejects=(*self.result.rejects, *rejects),
            healed=(*self.result.healed, *set(written).intersection(self._requests.job.open_rejects)),
        )

    def _counts(self, written: int, rejected: int) -> Counts:
        return Counts(written=written, rejected=rejected)

    def _reject(self, one: Document, field: str) -> Reject:
        """The policy of the pipeline decides whether the row may be left out."""
        reason = f"field '{field}' breaks a rule of the target"
        reject = Reject("/".join(one.key), field, "RULE", reason, json.dumps(one.document))
        self._requests.job.rejects.judge(reject)
        return reject


class StagedUnit(MemoryUnit):
    """The same for a load: nothing of it is visible before it is published."""

    def _check(self, batch: Batch, documents: Documents) -> None:
        """The load is checked as a whole when it is published."""

    def _counts(self, written: int, rejected: int) -> Counts:
        return Counts(staged=written, rejected=rejected)
