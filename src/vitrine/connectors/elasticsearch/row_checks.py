"""Carries out the checks of a pipeline on a staged index, by queries that find the documents that break them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitrine.checks import LONGEST_VALUE, AcceptedValues, BaseCheck, NotNull, Range, RowCount, Unique
from vitrine.connectors.elasticsearch.definition import IndexDefinition, mapping_of
from vitrine.connectors.elasticsearch.generations import StoredIndex
from vitrine.connectors.elasticsearch.ids import key_of
from vitrine.connectors.elasticsearch.requests import Job, Requests
from vitrine.errors import ConfigError
from vitrine.flow import checks as rules
from vitrine.flow.check_results import KEYS_NAMED, CheckResult, Results, refuse_failed
from vitrine.flow.rows import NUMBERS, Column, Finding, Key, Kind, kind_of

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
            yield Finding(rules.CHECK_COLUMN, reason, next(iter(check.checked), None), fatal=True)


def _problem(
    check: BaseCheck, types: Mapping[str, str], properties: Mapping[str, Any], key: Sequence[str], target: str
) -> str | None:
    if reason := rules.unfit_reason(check, types, target):
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
            return rules.count_result(check, rows, before)
        if not rows:
            return rules.result_of(check, 0)
        properties, target = self._index.properties, str(self._job.target)
        if reason := _problem(check, self._types, properties, self._key, target):
            raise ConfigError(reason, code=rules.CHECK_COLUMN)
        if isinstance(check, Unique):  # documents have their key as id
            return rules.result_of(check, 0)
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
        return rules.result_of(check, count, sorted(self._key_of(hit) for hit in hits))

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
        text, kind = rules.canonical(value, self._types[name]), kind_of(self._types[name])
        if kind in NUMBERS:
            return int(text) if kind is Kind.INTEGER else float(text)
        if kind is Kind.BOOLEAN:
            return text == "t"
        if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            return text.replace(" ", "T").removesuffix("+00:00") + "Z"
        return text


def _any(queries: Sequence[Json]) -> Json:
    return {"bool": {"should": list(queries), "minimum_should_match": 1}}
