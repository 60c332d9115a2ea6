"""Checks of rows, of a target, and of the cluster."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.client import Job, Requests
from vitrine.connectors.elasticsearch.documents import key_of
from vitrine.connectors.elasticsearch.index import (
    CLOSED,
    READ_ONLY,
    Found,
    Mark,
    ShortLease,
    StoredIndex,
    foreign_guard,
    missing_field,
)
from vitrine.connectors.elasticsearch.mapping import IndexDefinition, mapping_of
from vitrine.core import row_checks
from vitrine.core.checks import (
    KEYS_NAMED,
    LONGEST_VALUE,
    AcceptedValues,
    BaseCheck,
    CheckResult,
    NotNull,
    Range,
    Results,
    RowCount,
    Unique,
    refuse_failed,
)
from vitrine.core.rows import NUMBERS, Column, Finding, Key, Kind, bare_type, kind_of
from vitrine.definition.connectors import Diagnosis
from vitrine.errors import ConfigError, VitrineError

TYPES = frozenset({"not_null", "unique", "accepted_values", "range", "row_count"})

Json = dict[str, Any]

_UNSEARCHABLE = frozenset({Kind.ARRAY, Kind.JSON, Kind.BYTES})
"""Kinds of which a query cannot see whether a document has a value: an empty array is like none."""

_LARGEST = {"short": 2**15 - 1, "integer": 2**31 - 1, "long": 2**63 - 1}
"""A query refuses whole numbers beyond those of its field."""

_CHANGED = ("null_value", "normalizer", "script", "runtime")


def check_findings(job: Job, definition: IndexDefinition, columns: Sequence[Column]) -> Iterator[Finding]:
    """Checks that cannot be carried out on documents of these columns; none are known yet if a transform makes them."""
    types = {column.name: column.type for column in columns}
    for check in job.definition.checks if columns else ():
        if reason := _problem(
            check, types, definition.mappings["properties"], job.definition.key_columns, str(job.target)
        ):
            yield Finding(row_checks.CHECK_COLUMN, reason, next(iter(check.checked), None), fatal=True)


def _problem(
    check: BaseCheck, types: Mapping[str, str], properties: Mapping[str, Any], key: Sequence[str], target: str
) -> str | None:
    if reason := row_checks.unfit_reason(check, types, target):
        return reason
    place = f"check '{check.label}'"
    if isinstance(check, Unique):
        if set(key) <= set(check.columns):
            return None
        return f"{place}: Elasticsearch compares documents by their key ({', '.join(key)}) only; name its columns"
    for name in check.checked:
        kind = kind_of(types[name])
        if kind in _UNSEARCHABLE or (kind is Kind.TIME and isinstance(check, Range)):
            return (
                f"{place}: Elasticsearch cannot search column '{name}' of type {types[name]} for it; remove the check"
            )
        if _field(name, types[name], properties, key) is None:
            return (
                f"{place}: options.index maps field '{name}' in a way that it cannot be searched for; map it otherwise"
            )
    return None


def _field(name: str, type_name: str, properties: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """The field whose terms are the values as they are; None: there is none."""
    mapping: Json = properties.get(name) or {}
    if mapping.get("type") == "text":
        inner: Json = mapping.get("fields", {}).get("keyword", {})
        is_whole = inner.get("ignore_above", LONGEST_VALUE) >= LONGEST_VALUE
        return f"{name}.keyword" if inner.get("type") == "keyword" and is_whole and _is_plain(inner) else None
    derived = mapping_of(type_name, is_key=name in key)
    is_same = mapping.get("type") == derived["type"] or (mapping.get("type"), derived["type"]) == ("keyword", "text")
    return name if is_same and _is_plain(mapping) else None


def _is_plain(mapping: Json) -> bool:
    return mapping.get("index", True) is not False and not any(name in mapping for name in _CHANGED)


class StagedChecks:
    """The checks of a load, on the documents of its index, which was refreshed."""

    def __init__(self, job: Job, requests: Requests, index: StoredIndex) -> None:
        self._job = job
        self._requests = requests
        self._index = index
        self._types = {column.name: column.type for column in index.columns}
        self._key = index.mark.key if index.mark else job.definition.key_columns

    def results(self, checks: Sequence[BaseCheck], rows: int, before: int | None) -> Results:
        """What they find among so many documents; CheckFailed if one of severity fail has not passed."""
        found = tuple(self._result(check, rows, before) for check in checks)
        return refuse_failed(str(self._job.target), found)

    def _result(self, check: BaseCheck, rows: int, before: int | None) -> CheckResult:
        if isinstance(check, RowCount):
            return row_checks.count_result(check, rows, before)
        if not rows:
            return row_checks.result_of(check, 0)
        properties, target = self._index.properties, str(self._job.target)
        if reason := _problem(check, self._types, properties, self._key, target):
            raise ConfigError(reason, code=row_checks.CHECK_COLUMN)
        if isinstance(check, Unique):  # documents have their key as id
            return row_checks.result_of(check, 0)
        query = self._breaking(check)
        found = self._requests.call(
            lambda client: (
                client.search(
                    index=self._index.name,
                    query=query,
                    size=KEYS_NAMED if self._job.run.show_keys else 0,
                    source=False,
                    track_total_hits=True,
                    allow_partial_search_results=False,
                ).body
            )
        )
        self._requests.refuse_partial(found)
        count: int = self._requests.member(found, "hits", "total", "value")
        hits: list[Json] = self._requests.member(found, "hits", "hits")
        return row_checks.result_of(check, count, sorted(self._key_of(hit) for hit in hits))

    def _key_of(self, hit: Json) -> Key:
        return key_of(hit["_id"], len(self._key))

    # -- queries --------------------------------------------------------------------------------------------------

    def _breaking(self, check: BaseCheck) -> Json:
        """Finds the documents that break a check."""
        match check:
            case NotNull():
                return _any([{"bool": {"must_not": [self._has(name)]}} for name in check.columns])
            case AcceptedValues():
                values = [self._value(value, check.column) for value in check.values]
                known = [value for value in values if not self._is_beyond(value, check.column)]
                return {
                    "bool": {
                        "filter": [self._has(check.column)],
                        "must_not": [{"terms": {self._searched(check.column): known}}],
                    }
                }
            case Range():
                bounds = (("lt", check.min), ("gt", check.max))
                return _any(
                    [self._outside(check.column, operator, bound) for operator, bound in bounds if bound is not None]
                )
            case _:
                raise ValueError(f"{check.kind} is no check of single documents")

    def _outside(self, name: str, operator: str, bound: object) -> Json:
        value = self._value(bound, name)
        if self._is_beyond(value, name):  # every value lies on one side of it
            return self._has(name) if (operator == "lt") is (value > 0) else {"match_none": {}}
        return {"range": {self._searched(name): {operator: value}}}

    def _has(self, name: str) -> Json:
        """An analyzed field has no terms for an empty text, and its keyword none for a long one."""
        fields = dict.fromkeys((name, self._searched(name)))
        return _any([{"exists": {"field": field}} for field in fields])

    def _searched(self, name: str) -> str:
        return _field(name, self._types[name], self._index.properties, self._key) or name

    def _is_beyond(self, value: Any, name: str) -> bool:
        """Whether a whole number lies beyond those that the field can have."""
        largest = _LARGEST.get(self._index.properties.get(name, {}).get("type"))
        return largest is not None and isinstance(value, int) and abs(value) > largest

    def _value(self, value: object, name: str) -> Any:
        """A value of a check in JSON, as documents have it."""
        text, kind = row_checks.canonical(value, self._types[name]), kind_of(self._types[name])
        if kind in NUMBERS:
            return int(text) if kind is Kind.INTEGER else float(text)
        if kind is Kind.BOOLEAN:
            return text == "t"
        if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            return text.replace(" ", "T").removesuffix("+00:00") + "Z"
        return text


def _any(queries: Sequence[Json]) -> Json:
    return {"bool": {"should": list(queries), "minimum_should_match": 1}}


_TEXTS = frozenset({Kind.TEXT, Kind.UUID, Kind.OTHER, Kind.INTERVAL, Kind.TIME})


def findings_about(job: Job, found: Found, definition: IndexDefinition, columns: Sequence[Column]) -> Iterator[Finding]:
    yield from _about_key(job, columns)
    yield from definition.findings
    for column in columns:
        if bare_type(column.type) == "json":
            text = (
                f"column '{column.name}' is json: its value is kept, not its text; of a name that it repeats, the last"
                " counts, and reconcile reports other spaces as a difference; cast it to jsonb"
            )
            yield Finding("JSON_TEXT", text, column.name)
    live = found.live
    if live is not None:
        yield from _about_owner(job, live)
        yield from _about_block(job, live)
        yield from _about_ingest(job, live)
        if live.mark is not None:
            yield from _about_changed_key(job, live.mark)
            if columns:
                yield from _about_changes(job, live.mark, definition, columns)
    elif (guard := found.guard) is not None and guard.mark is None:
        yield Finding("TARGET_FOREIGN", foreign_guard(guard), fatal=True)
    if job.options.write == "upsert":
        yield from _about_upsert(job)
    yield from check_findings(job, definition, columns)


def _about_key(job: Job, columns: Sequence[Column]) -> Iterator[Finding]:
    key, names = job.definition.key_columns, [column.name for column in columns]
    if not key:
        yield Finding("KEY_MISSING", f"target {job.target} has no key; set key_columns", fatal=True)
    for name in key if columns else ():
        if name not in names:
            text = f"the rows lack the key column '{name}', which is the id of a document"
            yield Finding("SCHEMA_CHANGED", text, name, fatal=True)
    for column in columns:
        if column.name in key and not column.identical and not _has_one_text(column) and not job.rebuilds:
            text = (
                f"key column '{column.name}' is {column.type}, of which equal values may have different texts (1.0 and"
                " 1.00): if the source writes a key in another way, a second document appears; cast it in the query"
            )
            yield Finding("KEY_TEXT", text, column.name)


def _has_one_text(column: Column) -> bool:
    """A scale and a length are the same for all values of the column."""
    return column.type.startswith(("numeric(", "character("))


def _about_owner(job: Job, live: StoredIndex) -> Iterator[Finding]:
    name, mark = job.target.name, live.mark
    if live.name == name:
        text = (
            f"'{name}' is an index, but a target is an alias of indexes that Vitrine creates; rename the index, or"
            " choose another target"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)
    elif mark is None:
        text = (
            f"alias '{name}' belongs to index '{live.name}', which Vitrine has not created; remove the alias, or choose"
            " another target"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)
    elif job.run.installation and mark.installation != job.run.installation:
        text = (
            f"index '{live.name}' belongs to another installation of Vitrine; choose another target, or remove the"
            f" alias '{name}'"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)


def _about_block(job: Job, live: StoredIndex) -> Iterator[Finding]:
    """A block passes, but a closed index cannot even be counted."""
    if live.block is None or (job.rebuilds and live.block not in (CLOSED, READ_ONLY)):  # a rebuild does not write to it
        return
    text = f"index '{live.name}' of {job.target} takes no changes: {live.block}; open the index, or remove the block"
    yield Finding("SINK_BLOCKED", text, fatal=live.block == CLOSED)


def _about_ingest(job: Job, live: StoredIndex) -> Iterator[Finding]:
    if live.ingest:
        text = (
            f"index '{live.name}' of {job.target} has the ingest pipeline {' and '.join(live.ingest)}, which may change"
            " documents: reconcile reports what differs from the rows; remove index.default_pipeline and"
            " index.final_pipeline, or exclude the index from the template that sets them"
        )
        yield Finding("INGEST_PIPELINE", text)


def _about_changed_key(job: Job, mark: Mark) -> Iterator[Finding]:
    key = job.definition.key_columns
    if mark.key and key and mark.key != key and not job.rebuilds:
        text = (
            f"{job.target} was built with the key ({', '.join(mark.key)}), but the key is now ({', '.join(key)}): the"
            " documents with the old ids would stay; build the index again by a full run"
        )
        yield Finding("TARGET_SCHEMA", text, fatal=True)


def _about_changes(job: Job, mark: Mark, definition: IndexDefinition, columns: Sequence[Column]) -> Iterator[Finding]:
    rebuilt, known = job.rebuilds, mark.columns
    for column in columns:
        if column.name not in known:
            if not rebuilt and job.definition.options.on_schema_change == "fail":
                yield Finding("TARGET_SCHEMA", missing_field(job, column.name), column.name, fatal=True)
        elif not rebuilt and not _fits(column.type, known[column.name]):
            text = (
                f"field '{column.name}' of {job.target} was built for type {known[column.name]}, but the query now"
                f" returns {column.type}; cast it, or build the index again by a full run"
            )
            yield Finding("TARGET_SCHEMA", text, column.name, fatal=True)
    if definition.fingerprint != mark.fingerprint and all(column.name in known for column in columns):
        yield Finding("INDEX_CHANGED", f"the definition of {job.target} has changed; {_consequence(rebuilt=rebuilt)}")


def _consequence(*, rebuilt: bool) -> str:
    if rebuilt:
        return "the next run builds the index again"
    return "changes are written to the index as it is, and a full run builds it again"


def _fits(source: str, stored: str) -> bool:
    """Whether the mapping of one type takes values of another."""
    kinds = {kind_of(source), kind_of(stored)}
    return len(kinds) == 1 or kinds <= NUMBERS or kinds <= _TEXTS


def _about_upsert(job: Job) -> Iterator[Finding]:
    if job.rebuilds:
        text = (
            f"write: upsert changes documents of {job.target}, but mode full builds the index again without the fields"
            " of others, as a full run does; use mode incremental without full runs, or write: index"
        )
        yield Finding("UPSERT_FULL", text, fatal=True)
    text = (
        "write: upsert is at-least-once: a late request of a run that died may overwrite a newer document, fields that"
        " the query no longer returns stay, the cluster rounds numbers with a fraction to double, and merges JSON"
        " objects; use write: index where one pipeline owns the documents"
    )
    yield Finding("UPSERT_UNFENCED", text)
    if job.definition.options.delete_mode == "reconcile_keys":
        text = (
            f"delete_mode: reconcile_keys deletes every document of {job.target} whose key the source lacks, also those"
            " that only other programs have written; use delete_mode: soft_column to keep them"
        )
        yield Finding("UPSERT_DELETES", text)


SUBJECT = "Elasticsearch"


def diagnose(settings: ElasticsearchSettings, sources: Mapping[str, str]) -> Iterator[Diagnosis]:
    if settings.url is None:
        yield Diagnosis(SUBJECT, "ok", f"not configured; for targets es:index, {settings.needs}")
        return
    try:
        with closing(Requests(settings, "es:*", ShortLease())) as requests:
            version = str(requests.call(lambda client: client.info())["version"]["number"])
            health = str(requests.call(lambda client: client.cluster.health())["status"])
    except VitrineError as exc:
        yield Diagnosis(SUBJECT, "error", str(exc), "check VITRINE_ELASTICSEARCH_URL, the account and the cluster")
        return
    if health == "red":
        remedy = "see GET _cluster/allocation/explain of the cluster"
        yield Diagnosis(SUBJECT, "error", f"version {version}, but parts of the cluster are unavailable (red)", remedy)
    else:
        yield Diagnosis(SUBJECT, "ok", f"version {version}, {health}")
