"""Units of bulk requests: every document of a unit gets its own outcome."""

import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, cast

from elasticsearch import ApiError, Elasticsearch

from vitrine.connectors.elasticsearch.client import Job, Requests, described, error_of
from vitrine.connectors.elasticsearch.documents import Documents, key_of
from vitrine.connectors.elasticsearch.index import StoredIndex
from vitrine.connectors.elasticsearch.read import StoredRows
from vitrine.core import keys
from vitrine.core.checks import refuse_failed
from vitrine.core.rows import NOTHING_WRITTEN, Batch, Counts, Key, Reject, Stamp, Written
from vitrine.errors import ConfigError, TransientError

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before documents are sent again that the cluster had no room for."""

LONGEST_WAIT = 60.0
"""However long the cluster asks for."""

_WIDTH_OF_ACTION = 100
"""Bytes of the line before a document, about."""

_ABOUT_THE_DOCUMENT = frozenset(
    {
        "document_parsing_exception",
        "fail_processor_exception",
        "illegal_argument_exception",
        "mapper_parsing_exception",
        "strict_dynamic_mapping_exception",
    }
)
"""Errors with status 400 that another document would not have; an index that is closed has the same status."""

_ABOUT_THE_INDEX = re.compile(r"no write index is defined|pipeline with id \[.*\] does not exist")
"""Reasons of these errors that every document of the index would have."""

_FIELD = re.compile(r"field \[([^\]]+)\]")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKET = re.compile(r"[\[\]{}]")
_MOST_NESTED = 200
"""Levels of a document; Python reads fewer than a thousand."""

_GENERATION = re.compile(r"__g[0-9]+__[a-z]+$")
_ANSWERED = "items.*.status,items.*.result,items.*.error,items.update._seq_no"
_PLACES = ",items.*._index,items.*._id"
_HEADERS = {"content-type": "application/x-ndjson", "accept": "application/json"}


class Action(StrEnum):
    """What is done with a document."""

    INDEX = "index"  # replaces the stored one, unless that has a higher version
    UPSERT = "update"  # changes the fields of the stored one, or creates it
    DELETE = "delete"


@dataclass(frozen=True)
class Operations:
    """One action on some documents."""

    action: Action
    ids: Sequence[str]
    sources: Sequence[bytes] = ()  # none for a delete
    version: int | None = None  # None: other programs change the documents, so they have no version of ours

    def __len__(self) -> int:
        return len(self.ids)

    def source(self, place: int) -> bytes:
        return self.sources[place] if self.sources else b""

    def part(self, first: int, last: int | None) -> "Operations":
        return replace(self, ids=self.ids[first:last], sources=self.sources[first:last])

    def at(self, places: Sequence[int]) -> "Operations":
        sources = [self.sources[place] for place in places] if self.sources else ()
        return replace(self, ids=[self.ids[place] for place in places], sources=sources)

    def body(self) -> bytes:
        """The lines of the request."""
        quoted = (json.dumps(one).encode() for one in self.ids)
        end = b"}}\n"
        if self.version is not None:
            end = b',"version":%d,"version_type":"external_gte"}}\n' % self.version
        if self.action is Action.DELETE:
            return b"".join(b'{"delete":{"_id":%b%b' % (one, end) for one in quoted)
        pairs = zip(quoted, self.sources, strict=True)
        if self.action is Action.UPSERT:
            end = b',"retry_on_conflict":3}}\n'
            lines = (b'{"update":{"_id":%b%b{"doc":%b,"doc_as_upsert":true}\n' % (one, end, doc) for one, doc in pairs)
        else:
            # guarantee: A4
            lines = (b'{"index":{"_id":%b%b%b\n' % (one, end, doc) for one, doc in pairs)
        return b"".join(lines)


@dataclass
class Outcome:
    """What the cluster has done so far."""

    done: list[str] = field(default_factory=list[str])  # ids that were written
    deleted: int = 0
    rejects: list[Reject] = field(default_factory=list[Reject])


@dataclass(frozen=True)
class Limits:
    """The size of one request, and how many are in flight."""

    documents: int
    bytes: int
    in_flight: int
    compress: bool

    @classmethod
    def of(cls, job: Job, requests: Requests) -> "Limits":
        options, compress = job.options, job.settings.compress
        if compress is None:
            compress = not requests.is_local
        return cls(options.bulk_documents, options.bulk_bytes, options.bulk_in_flight, compress)


class Bulk:
    """Sends operations to one alias, several requests at a time; complete once `finish` returns."""

    def __init__(
        self,
        requests: Requests,
        alias: str,
        limits: Limits,
        width: int,
        judge: Callable[[Reject], None],
        ingest: Sequence[str] = (),
    ) -> None:
        self.outcome = Outcome()
        self._requests = requests
        self._alias = alias
        self._limits = limits
        self._width = width  # columns of the key
        self._judge = judge
        self._ingest = ingest  # ingest pipelines of the index: they may store a document elsewhere
        self._sent: dict[Future[Any], Operations] = {}  # in flight

    def send(self, operations: Operations) -> None:
        with self._together():
            for request in cut(operations, self._limits):
                while len(self._sent) >= self._limits.in_flight:
                    self._receive()
                self._sent[self._start(self._body(request))] = request

    def finish(self) -> None:
        with self._together():
            while self._sent:
                self._receive()

    @contextmanager
    def _together(self) -> Generator[None]:
        """If one request fails, the unit has failed: none of the others may arrive later."""
        try:
            yield
        except BaseException:
            if self._sent:
                self._requests.abandon()
            raise

    def _receive(self) -> None:
        """Settle a request that is answered, whichever is the first: the next one can then be sent."""
        reply = self._requests.first_of(self._sent)
        self._complete(self._sent.pop(reply), reply)

    def _complete(self, operations: Operations, reply: "Future[Any]") -> None:
        """Until every operation of the request has its outcome."""
        attempt = 0
        while True:
            missing = self._attempt(operations, reply)
            if not len(missing):
                return
            if attempt == len(WAITS):
                raise TransientError(
                    f"target {self._requests.target}: the cluster has not taken {len(missing)} document(s) after"
                    f" {attempt + 1} attempts: it is overloaded, or others write the same documents all the time"
                )
            self._requests.lease.wait(WAITS[attempt])
            attempt += 1
            operations, reply = missing, self._start(self._body(missing))

    def _attempt(self, operations: Operations, reply: "Future[Any]") -> Operations:
        """The operations that must be sent again."""
        try:
            return self._settle(operations, self._requests.wait(reply))
        except TransientError as exc:
            cause = exc.__cause__
            if not isinstance(cause, ApiError) or cause.status_code != 429:
                raise
            # guarantee: F3
            self._requests.lease.wait(_retry_after(cause))
            return operations
        except Exception as exc:
            cause = exc.__cause__
            if not isinstance(cause, ApiError) or cause.status_code != 413:
                raise
            self._halve(operations)
            return operations.at(())

    def _halve(self, operations: Operations) -> None:
        """The request is too large for the cluster."""
        if len(operations) == 1:
            # guarantee: F6
            self._reject(operations, 0, "REQUEST_TOO_LARGE", "the document is larger than the cluster accepts", None)
            return
        middle = len(operations) // 2
        for half in (operations.part(0, middle), operations.part(middle, None)):
            self._sent[self._start(self._body(half))] = half
            self.finish()

    def _body(self, operations: Operations) -> bytes:
        return _gzip(operations.body()) if self._limits.compress else operations.body()

    def _start(self, body: bytes) -> "Future[Any]":
        path, headers = f"/{self._alias}/_bulk", _HEADERS
        if self._limits.compress:
            headers = {**headers, "content-encoding": "gzip"}
        # an alias: an index that was deleted must not be created by a write
        # guarantee: F10
        params = {"require_alias": "true", "filter_path": _ANSWERED + (_PLACES if self._ingest else "")}

        def post(client: Elasticsearch) -> Any:
            return client.perform_request("POST", path, params=params, headers=headers, body=body).body

        return self._requests.start(post)

    def _settle(self, operations: Operations, reply: Any) -> Operations:
        """Account for every item of a reply; returns the operations that must be sent again."""
        items: list[dict[str, dict[str, Any]]] = self._requests.member(reply, "items")
        # guarantee: F5
        if len(items) != len(operations):
            raise self._incomplete(len(items), len(operations))
        again: list[int] = []
        for place, item in enumerate(items):
            try:
                ((action, result),) = item.items()
                status = result.get("status", 0)
            except (AttributeError, ValueError) as exc:
                raise self._incomplete(place, len(operations)) from exc
            if status in (200, 201):
                self._settle_success(operations, place, action, result)
            elif not self._is_missing(action, result):
                self._settle_failure(operations, place, status, result, again)
        # guarantee: F2
        return operations.at(again)

    def _incomplete(self, answered: int, sent: int) -> TransientError:
        return TransientError(
            f"target {self._requests.target}: the cluster answered for {answered} of {sent} documents",
            code="BULK_INCOMPLETE",
        )

    def _settle_success(self, operations: Operations, place: int, action: str, result: dict[str, Any]) -> None:
        if action == "delete":
            self.outcome.deleted += 1
        elif result.get("result") == "noop" and (action == "index" or "_seq_no" not in result):
            # the status is 200, and the document is not in the index; an update that changes nothing names what it met
            reason = "an ingest pipeline of the cluster dropped the document; see index.default_pipeline"
            self._reject(operations, place, "DROPPED", reason, None)
        else:
            if self._ingest:
                self._refuse_moved(operations.ids[place], result)
            self.outcome.done.append(operations.ids[place])

    def _refuse_moved(self, document_id: str, result: dict[str, Any]) -> None:
        """The status is that of a success, but the index has no document with this id."""
        index = self._alias.rpartition("__")[0]
        if (result.get("_index"), result.get("_id")) != (index, document_id):
            raise ConfigError(
                f"target {self._requests.target}: the ingest pipeline {' or '.join(self._ingest)} of the cluster stores"
                " documents in another index or with another id; change it, or remove it from the index",
                code="INGEST_PIPELINE",
            )

    def _is_missing(self, action: str, result: dict[str, Any]) -> bool:
        """A document to delete that was not there: that is a success."""
        # guarantee: F12
        return action == "delete" and result.get("status") == 404 and "error" not in result

    def _settle_failure(
        self, operations: Operations, place: int, status: int, result: dict[str, Any], again: list[int]
    ) -> None:
        kind, reason = described(result)
        if status in (429, 503) and kind != "cluster_block_exception":
            again.append(place)
        elif status == 409 and operations.version is None:
            again.append(place)  # another program changes the same document at this moment
        elif status == 409:
            # guarantee: B4
            raise self._requests.conflict()
        elif status == 400 and _is_about_the_document(kind, reason):
            # guarantee: F1
            column = _FIELD.search(reason)
            self._reject(operations, place, kind.upper(), reason, column[1] if column else None)
        else:
            raise error_of(self._requests.target, status, result)

    def _reject(self, operations: Operations, place: int, code: str, reason: str, column: str | None) -> None:
        """The policy of the pipeline decides whether the document may be left out."""
        key = keys.to_text(key_of(operations.ids[place], self._width))
        row = _for_quarantine(operations.source(place).decode())
        text = f"index {_GENERATION.sub('', self._alias)}, id {operations.ids[place]}: {reason}"
        reject = Reject(key, column, code or "REFUSED", text, row)
        self._judge(reject)
        self.outcome.rejects.append(reject)


def _for_quarantine(document: str) -> str:
    """The row of a reject: the document, or its text if it is nested too deeply for those who list the quarantine."""
    brackets = _BRACKET.findall(_STRING.sub("", document))
    depth = max(accumulate(1 if one in "[{" else -1 for one in brackets), default=0)
    return json.dumps({"document": document}) if depth > _MOST_NESTED else document or "{}"


def _is_about_the_document(kind: str, reason: str) -> bool:
    return kind in _ABOUT_THE_DOCUMENT and not _ABOUT_THE_INDEX.search(reason)


def cut(operations: Operations, limits: Limits) -> Iterator[Operations]:
    """Requests within the limits; one larger document is sent alone."""
    first, size = 0, 0
    for place in range(len(operations)):
        width = len(operations.source(place)) + _WIDTH_OF_ACTION
        if place > first and (place - first >= limits.documents or size + width > limits.bytes):
            yield operations.part(first, place)
            first, size = place, 0
        size += width
    if first < len(operations):
        yield operations.part(first, None)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


def _retry_after(error: ApiError) -> float:
    try:
        return min(float(error.meta.headers.get("retry-after") or WAITS[0]), LONGEST_WAIT)
    except ValueError:
        return WAITS[0]


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
