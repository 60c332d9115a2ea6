"""The definition of an index: derived from columns, and changed by `options.index`."""

from typing import Any

import pytest

from vitrine.connectors.elasticsearch.mapping import IndexDefinition, definition_of, mapping_of
from vitrine.core.rows import Column
from vitrine.errors import ConfigError

COLUMNS = (Column("id", "uuid"), Column("title", "text"), Column("genres", "jsonb"))
MOMENT = {"type": "date", "format": "strict_date_optional_time_nanos"}
SHORT = {"type": "keyword", "ignore_above": 8191}


def defined(given: dict[str, Any] | None = None) -> IndexDefinition:
    return definition_of(COLUMNS, ["id"], given)


def refusal(given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        defined(given)
    assert refused.value.code == "INDEX_DEFINITION"
    return str(refused.value)


@pytest.mark.parametrize(
    ("type_name", "mapping"),
    [
        ("boolean", {"type": "boolean"}),
        ("smallint", {"type": "short", "coerce": False}),
        ("integer", {"type": "integer", "coerce": False}),
        ("bigint", {"type": "long", "coerce": False}),
        ("oid", {"type": "long", "coerce": False}),
        ("real", {"type": "float", "coerce": False}),
        ("double precision", {"type": "double", "coerce": False}),
        ("numeric(12,2)", {"type": "double", "coerce": False}),
        ("uuid", {"type": "keyword"}),
        ("character varying(20)", {"type": "text", "fields": {"keyword": SHORT}}),
        ("date", {"type": "date", "format": "strict_date"}),
        ("timestamp(3) without time zone", MOMENT),
        ("timestamp with time zone", MOMENT),
        ("time without time zone", {"type": "keyword"}),
        ("interval", {"type": "keyword"}),
        ("bytea", {"type": "binary"}),
        ("jsonb", {"type": "object", "enabled": False}),
        ("jsonb[]", {"type": "object", "enabled": False}),
        ("integer[]", {"type": "integer", "coerce": False}),
        ("text[]", {"type": "text", "fields": {"keyword": SHORT}}),
        ("numeric(8,2)[]", {"type": "double", "coerce": False}),
        ("box[]", SHORT),
        ("inet", SHORT),
        ("int4range", SHORT),
    ],
)
def test_the_mapping_follows_from_the_type(type_name: str, mapping: dict[str, Any]) -> None:
    assert mapping_of(type_name) == mapping


def test_a_key_of_text_is_a_keyword_of_any_length() -> None:
    found = definition_of([Column("code", "text"), Column("name", "text")], ["code"], None)
    assert found.mappings["properties"]["code"] == {"type": "keyword"}
    assert found.mappings["properties"]["name"]["type"] == "text"


def test_without_a_given_definition_unknown_fields_are_refused_and_deletes_are_remembered() -> None:
    found = defined()
    assert found.settings == {"index.gc_deletes": "1h"}
    assert found.mappings["dynamic"] == "strict"
    assert list(found.mappings["properties"]) == ["id", "title", "genres"]
    assert found.findings == ()


def test_a_given_property_replaces_the_derived_one_and_other_parts_are_kept() -> None:
    title = {"type": "text", "analyzer": "russian"}
    found = defined(
        {
            "settings": {"gc_deletes": "2h"},
            "mappings": {"properties": {"title": title}, "dynamic": False, "_meta": {"team": "search"}},
        }
    )
    assert found.settings == {"index.gc_deletes": "2h"}
    assert found.mappings["properties"]["title"] == title
    assert found.mappings["properties"]["id"] == {"type": "keyword"}
    assert found.mappings["dynamic"] is False
    assert found.mappings_with({"generation": 2})["_meta"] == {"team": "search", "vitrine": {"generation": 2}}


def test_settings_are_equal_however_they_are_nested() -> None:
    given = [
        {"index": {"analysis": {"analyzer": {"a": {"type": "custom"}}}, "number_of_shards": 2}},
        {"index.analysis.analyzer.a.type": "custom", "number_of_shards": 2},
        {"analysis": {"analyzer": {"a": {"type": "custom"}}}, "index.number_of_shards": 2},
    ]
    found = [defined({"settings": one}) for one in given]
    assert found[0].settings["index.analysis.analyzer.a.type"] == "custom"
    assert len({one.fingerprint for one in found}) == 1


def test_the_fingerprint_changes_with_settings_mappings_and_columns() -> None:
    definitions = [
        defined(),
        defined({"settings": {"number_of_shards": 2}}),
        defined({"mappings": {"properties": {"title": {"type": "keyword"}}}}),
        definition_of([*COLUMNS, Column("rating", "numeric")], ["id"], None),
    ]
    assert len({one.fingerprint for one in definitions}) == 4
    assert defined().fingerprint == defined({}).fingerprint
    assert len(defined().fingerprint) == 16


def test_replicas_and_refresh_are_set_after_loading() -> None:
    found = defined({"settings": {"number_of_replicas": 2, "refresh_interval": "5s", "number_of_shards": 3}})
    assert found.settings_while_loading == {
        "index.gc_deletes": "1h",
        "index.number_of_shards": 3,
        "index.refresh_interval": "-1",
        "index.number_of_replicas": 0,
    }
    assert found.settings_after_loading == {"index.refresh_interval": "5s", "index.number_of_replicas": 2}
    assert defined().settings_after_loading == {"index.refresh_interval": None, "index.number_of_replicas": None}


def test_replicas_that_follow_the_number_of_nodes_are_not_replaced_by_the_default() -> None:
    found = defined({"settings": {"auto_expand_replicas": "0-1"}})
    assert "index.auto_expand_replicas" not in found.settings_while_loading
    assert found.settings_after_loading == {"index.refresh_interval": None, "index.auto_expand_replicas": "0-1"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mapping": {}}, "options.index has no field 'mapping': it has settings and mappings; remove it"),
        ({"aliases": {}}, "options.index has no field 'aliases': the target is the alias; remove it"),
        (
            {"settings": [1]},
            "options.index.settings is not a mapping of names to values; write it as one",
        ),
        (
            {"mappings": {"properties": {"title": "text"}}},
            "options.index.mappings.properties.title is not a mapping; write it as one, such as type: keyword",
        ),
        (
            {"mappings": {"_meta": {"vitrine": 1}}},
            "options.index.mappings._meta has the member 'vitrine', in which Vitrine marks its indexes; rename it",
        ),
        (
            {"mappings": {"_source": {"enabled": False}}},
            "options.index.mappings._source is given, but Vitrine compares whole documents with their rows; remove it",
        ),
        (
            {"settings": {"index": {"mapping.source.mode": "synthetic"}}},
            'options.index.settings: index.mapping.source.mode is "synthetic", but Vitrine compares whole documents'
            " with their rows; remove it",
        ),
        (
            {"mappings": {"_routing": {"required": True}}},
            "options.index.mappings._routing is required, but documents have no routing; remove it",
        ),
        (
            {"settings": {"index": {"refresh_interval": "1s"}, "refresh_interval": "2s"}},
            "options.index.settings gives 'index.refresh_interval' twice; remove one of them",
        ),
    ],
)
def test_a_wrong_definition_is_refused_with_reason_and_remedy(given: dict[str, Any], sentence: str) -> None:
    assert refusal(given) == sentence


def test_a_value_that_json_does_not_have_is_refused() -> None:
    assert refusal({"settings": {"a": {1, 2}}}).startswith("options.index cannot be written as JSON")
    assert refusal({"settings": {"a": float("nan")}}).startswith("options.index cannot be written as JSON")


def test_a_field_that_no_column_fills_is_a_warning() -> None:
    (found,) = defined({"mappings": {"properties": {"titel": {"type": "text"}}}}).findings
    assert found.text == "options.index maps the field 'titel', but no column has that name; it stays empty"
    assert not found.fatal


def test_fields_filled_by_copies_and_aliases_need_no_column() -> None:
    properties = {
        "title": {"type": "text", "copy_to": "everything"},
        "genres": {"type": "nested", "properties": {"name": {"type": "text", "copy_to": ["everything", "names"]}}},
        "everything": {"type": "text"},
        "names": {"type": "text"},
        "name": {"type": "alias", "path": "title"},
    }
    assert defined({"mappings": {"properties": properties}}).findings == ()


@pytest.mark.parametrize("name", ["_id", "_source", "a.b", " "])
def test_a_column_whose_name_elasticsearch_does_not_accept_is_fatal(name: str) -> None:
    (found,) = definition_of([Column("id", "uuid"), Column(name, "text")], ["id"], None).findings
    assert found.fatal
    assert found.column == name
    assert found.text.endswith("; rename it in the query")


@pytest.mark.parametrize(
    ("name", "value"),
    [("refresh_interval", "5x"), ("refresh_interval", 30), ("number_of_replicas", -1), ("auto_expand_replicas", "1")],
)
def test_a_setting_that_the_server_sees_only_when_a_load_is_published_is_checked_before(name: str, value: Any) -> None:
    assert refusal({"settings": {name: value}}).startswith(f"options.index.settings: index.{name} is ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("refresh_interval", value) for value in ("30s", "-1", -1, None)),
        *(("number_of_replicas", value) for value in (0, "2")),
        *(("auto_expand_replicas", value) for value in ("0-1", "0-all", False)),
    ],
)
def test_every_form_of_these_settings_is_accepted(name: str, value: Any) -> None:
    assert defined({"settings": {name: value}}).settings[f"index.{name}"] == value
