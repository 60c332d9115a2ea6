"""Settings and mappings of an index, from the columns of a pipeline and its `options.index`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from vitrine.connectors.elasticsearch.encoding import element_type
from vitrine.core.rows import Column, Finding, Kind, bare_type, kind_of
from vitrine.errors import ConfigError

CODE = "INDEX_DEFINITION"
OWN_META = "vitrine"
"""The member of `_meta` in which the sink marks an index."""

IGNORE_ABOVE = 8191
"""Characters of a keyword: Lucene refuses a term of more than 32766 bytes, and a character has up to four."""

GC_DELETES = "index.gc_deletes"
REFRESH_INTERVAL = "index.refresh_interval"
REPLICAS = "index.number_of_replicas"
AUTO_EXPAND_REPLICAS = "index.auto_expand_replicas"

_AFTER_LOADING = (REFRESH_INTERVAL, REPLICAS, AUTO_EXPAND_REPLICAS)
_METADATA_FIELDS = frozenset(
    [
        "_doc_count",
        "_feature",
        "_field_names",
        "_id",
        "_ignored",
        "_ignored_source",
        "_index",
        "_inference_fields",
        "_nested_path",
        "_primary_term",
        "_routing",
        "_seq_no",
        "_size",
        "_source",
        "_tier",
        "_tsid",
        "_type",
        "_version",
    ]
)

Json = Mapping[str, Any]


@dataclass(frozen=True)
class IndexDefinition:
    """The body of an index. Settings are flat: `index.analysis.analyzer.russian.type`."""

    settings: Json
    mappings: Json
    findings: tuple[Finding, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Equal for equal definitions, however their settings are nested."""
        image = json.dumps([self.settings, self.mappings], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(image.encode()).hexdigest()[:16]

    @property
    def settings_while_loading(self) -> dict[str, Any]:
        """Without replicas and refresh; `settings_after_loading` are set before the index is shown."""
        kept = {name: value for name, value in self.settings.items() if name not in _AFTER_LOADING}
        return kept | {REFRESH_INTERVAL: "-1", REPLICAS: 0}

    @property
    def settings_after_loading(self) -> dict[str, Any]:
        """None is the default of the server."""
        if AUTO_EXPAND_REPLICAS in self.settings and REPLICAS not in self.settings:
            return {name: self.settings.get(name) for name in (REFRESH_INTERVAL, AUTO_EXPAND_REPLICAS)}
        given = {name: self.settings[name] for name in _AFTER_LOADING if name in self.settings}
        return {REFRESH_INTERVAL: None, REPLICAS: None} | given

    def mappings_with(self, mark: Json) -> dict[str, Any]:
        """The mappings with the sink's mark in `_meta`."""
        return {**self.mappings, "_meta": {**self.mappings.get("_meta", {}), OWN_META: dict(mark)}}


def definition_of(columns: Sequence[Column], key: Sequence[str], given: Json | None) -> IndexDefinition:
    """Given settings and properties replace the derived ones; ConfigError names what Elasticsearch could not take."""
    settings, mappings = check(given)
    properties = cast(Json, mappings.get("properties", {}))
    derived = {column.name: mapping_of(column.type, is_key=column.name in key) for column in columns}
    definition = IndexDefinition(
        {GC_DELETES: "1h"} | settings,
        {"dynamic": "strict"} | mappings | {"properties": {**derived, **properties}},
    )
    return replace(definition, findings=(*_column_findings(columns), *_property_findings(properties, derived)))


def check(given: Json | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and mappings of `options.index`, whatever the columns are; ConfigError for what is wrong with them."""
    plain = _plain(given or {})
    for name in plain:
        if name not in ("settings", "mappings"):
            reason = "the target is the alias" if name == "aliases" else "it has settings and mappings"
            raise ConfigError(f"options.index has no field '{name}': {reason}; remove it", code=CODE)
    settings = dict(_flat(_mapping(plain, "settings", "options.index"), ""))
    _check_settings(settings)
    mappings = _mapping(plain, "mappings", "options.index")
    _check_mappings(mappings)
    return settings, mappings


# -- derived mappings -------------------------------------------------------------------------------------------------

_NUMBERS = {
    "smallint": "short",
    "integer": "integer",
    "bigint": "long",
    "oid": "long",
    "real": "float",
    "double precision": "double",
    "numeric": "double",
}
_MOMENT: Json = {"type": "date", "format": "strict_date_optional_time_nanos"}
_SHORT_KEYWORD: Json = {"type": "keyword", "ignore_above": IGNORE_ABOVE}
_BY_KIND: Mapping[Kind, Json] = {
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.TEXT: {"type": "text", "fields": {"keyword": _SHORT_KEYWORD}},
    Kind.UUID: {"type": "keyword"},
    Kind.BYTES: {"type": "binary"},
    Kind.DATE: {"type": "date", "format": "strict_date"},
    Kind.TIMESTAMP: _MOMENT,
    Kind.TIMESTAMPTZ: _MOMENT,
    Kind.TIME: {"type": "keyword"},
    Kind.INTERVAL: {"type": "keyword"},
    # stored as it is and not searchable: members of any JSON value may contradict each other in type
    Kind.JSON: {"type": "object", "enabled": False},
}


def mapping_of(type_name: str, *, is_key: bool = False) -> dict[str, Any]:
    """The mapping of a column of this PostgreSQL type; arrays have that of their elements."""
    bare = element_type(type_name) or bare_type(type_name)
    if bare in _NUMBERS:
        # otherwise Elasticsearch indexes 1 for 1.5 in an integer, and "5" for a number
        return {"type": _NUMBERS[bare], "coerce": False}
    kind = kind_of(bare)
    if is_key and kind is Kind.TEXT:
        return {"type": "keyword"}
    return json.loads(json.dumps(_BY_KIND.get(kind, _SHORT_KEYWORD)))


# -- checks -----------------------------------------------------------------------------------------------------------


def _plain(given: Json) -> dict[str, Any]:
    """As JSON, in which YAML's keys are texts."""
    try:
        return json.loads(json.dumps(given, allow_nan=False))
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"options.index cannot be written as JSON: {exc}; put dates and other special values in quotes", code=CODE
        ) from exc


def _mapping(parent: Json, name: str, place: str) -> dict[str, Any]:
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{place}.{name} is not a mapping of names to values; write it as one", code=CODE)
    return cast(dict[str, Any], found)


def _flat(settings: Json, prefix: str) -> Iterator[tuple[str, Any]]:
    """Elasticsearch reads `index: {a: {b: 1}}`, `index.a.b: 1` and `a.b: 1` alike."""
    seen: set[str] = set()
    for name, value in settings.items():
        path = f"{prefix}{name}"
        nested = _flat(cast(Json, value), f"{path}.") if isinstance(value, dict) else [(path, value)]
        for inner, found in nested:
            whole = inner if prefix or inner.startswith("index.") else f"index.{inner}"
            if whole in seen:
                raise ConfigError(f"options.index.settings gives '{whole}' twice; remove one of them", code=CODE)
            seen.add(whole)
            yield whole, found


_FORMS = {
    REFRESH_INTERVAL: (re.compile(r"-1|0|[0-9]+(nanos|micros|ms|s|m|h|d)"), "30s"),
    REPLICAS: (re.compile(r"[0-9]+"), "1"),
    AUTO_EXPAND_REPLICAS: (re.compile(r"false|[0-9]+-([0-9]+|all)"), "0-1"),
}


_STORED_SOURCE = {"index.mapping.source.mode": ("stored",), "index.mode": ("standard", "lookup")}
"""The values with which a document is stored as it was sent."""


def _check_settings(settings: Json) -> None:
    """The server sees the forms only when a load is published: a mistake would cost the whole load."""
    for name, kept in _STORED_SOURCE.items():
        if settings.get(name) not in (None, *kept):
            raise ConfigError(
                f"options.index.settings: {name} is {json.dumps(settings[name])}, but Vitrine compares whole documents"
                " with their rows; remove it",
                code=CODE,
            )
    for name, (form, example) in _FORMS.items():
        given = settings.get(name)
        if given is not None and not form.fullmatch(json.dumps(given).strip('"')):
            raise ConfigError(
                f"options.index.settings: {name} is {json.dumps(given)}; write it like {example}", code=CODE
            )


def _check_mappings(mappings: Json) -> None:
    place = "options.index.mappings"
    if OWN_META in _mapping(mappings, "_meta", place):
        raise ConfigError(
            f"{place}._meta has the member '{OWN_META}', in which Vitrine marks its indexes; rename it", code=CODE
        )
    if _mapping(mappings, "_source", place):
        raise ConfigError(
            f"{place}._source is given, but Vitrine compares whole documents with their rows; remove it", code=CODE
        )
    if _mapping(mappings, "_routing", place).get("required"):
        raise ConfigError(f"{place}._routing is required, but documents have no routing; remove it", code=CODE)
    properties = _mapping(mappings, "properties", place)
    for name, mapping in properties.items():
        if not isinstance(mapping, dict):
            raise ConfigError(
                f"{place}.properties.{name} is not a mapping; write it as one, such as type: keyword", code=CODE
            )


def _column_findings(columns: Sequence[Column]) -> Iterator[Finding]:
    for column in columns:
        if column.name in _METADATA_FIELDS:
            reason = "Elasticsearch keeps this name for itself"
        elif "." in column.name:
            reason = "Elasticsearch reads a dot as an object with members"
        elif not column.name.strip():
            reason = "Elasticsearch refuses a blank name"
        else:
            continue
        yield Finding(CODE, f"column '{column.name}': {reason}; rename it in the query", column.name, fatal=True)


def _property_findings(properties: Json, derived: Json) -> Iterator[Finding]:
    copied = {target for one in properties.values() for target in _copied_to(one)}
    for name, mapping in properties.items():
        if name not in derived and name not in copied and mapping.get("type") != "alias":
            text = f"options.index maps the field '{name}', but no column has that name; it stays empty"
            yield Finding(CODE, text)


def _copied_to(mapping: Any) -> Iterator[str]:
    """The fields that a property, or one inside it, is copied to."""
    if not isinstance(mapping, dict):
        return
    found = cast(Json, mapping)
    targets: Any = found.get("copy_to") or ()
    yield from [targets] if isinstance(targets, str) else targets
    members = found.get("properties")
    for member in cast(Json, members).values() if isinstance(members, dict) else ():
        yield from _copied_to(member)
