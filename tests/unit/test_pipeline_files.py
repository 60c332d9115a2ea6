"""Pipelines as YAML: parsed, formatted and parsed again."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from vitrine.definition import files
from vitrine.definition.model import Definition
from vitrine.definition.yaml import Document, Variables, parse_text, read_variables
from vitrine.demo import search
from vitrine.demo.story import sample_documents
from vitrine.errors import ConfigError

GENRES: dict[str, Any] = {
    "name": "genres",
    "source_query": "SELECT id,\n       name\n  FROM content.genre",
    "target_table": "analytics.genres",
    "key_columns": ["id"],
}


def read_back(definition: Definition) -> Definition:
    return parse_text("a.yaml", files.format_text(definition)).definition


@pytest.mark.parametrize("document", [*sample_documents(), *search.documents()], ids=lambda one: one.origin)
def test_every_sample_pipeline_survives_the_round_trip(document: Document) -> None:
    assert read_back(document.definition) == document.definition


def test_a_query_of_several_lines_is_written_as_a_block() -> None:
    text = files.format_text(Definition.model_validate(GENRES))
    assert text == (
        "name: genres\n"
        "source_query: |-\n"
        "  SELECT id,\n"
        "         name\n"
        "    FROM content.genre\n"
        "target_table: analytics.genres\n"
        "key_columns:\n"
        "- id\n"
    )


def test_the_id_stands_first_and_defaults_are_left_out() -> None:
    text = files.format_text(Definition.model_validate(GENRES), id="11111111-1111-1111-1111-111111111111")
    assert text.startswith("id: 11111111-1111-1111-1111-111111111111\nname: genres\n")
    assert "batch_size" not in text


@given(description=some.text(max_size=200), query=some.text(max_size=200))
def test_any_text_survives_the_round_trip(description: str, query: str) -> None:
    definition = Definition.model_validate(GENRES | {"description": description, "source_query": query})
    assert read_back(definition) == definition


@given(
    options=some.fixed_dictionaries(
        {},
        optional={
            "horizon_margin": some.integers(0, 10**6).map(lambda n: f"{n}s"),
            "lookback": some.sampled_from(["90s", "5m", "1.5h", "2d", "250ms"]),
            "max_delete_ratio": some.floats(0, 1),
            "max_rows_per_second": some.integers(1, 10**6),
            "pause_between_batches": some.sampled_from(["0s", "250ms", "1.5s", "2m"]),
            "max_batch_bytes": some.integers(1024, 10**9),
            "touch_column": some.sampled_from(["updated_at", "on", "no", "null", "_1"]),
        },
    ),
    batch_size=some.integers(1, 50_000),
    schedule_interval=some.sampled_from([None, "5m", "*/15 6-22 * * MON-FRI", "0 3 L * *"]),
)
def test_any_options_survive_the_round_trip(
    options: dict[str, Any], batch_size: int, schedule_interval: str | None
) -> None:
    fields = {"options": options, "batch_size": batch_size, "schedule_interval": schedule_interval}
    definition = Definition.model_validate(GENRES | fields)
    assert read_back(definition) == definition


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: genres\nsource_query: SELECT a: b\n", "genres.yaml, line 2, column 23: "),
        ("name: genres\ntasks:\n\t- order_index: 1\n", "genres.yaml, line 3, column 1: indent with spaces"),
        ("name: genres\ndescription: a: b\n", "genres.yaml, line 2, column 15: YAML takes this colon for"),
        ("name: genres\nsource_query\nmode: full\n", "genres.yaml, line 3, column 1: the lines above this one end"),
        ("name: genres\n---\nname: films\n", "genres.yaml, line 2, column 1: a file has one document; move what"),
        ("name: [genres\n", "genres.yaml, line 2, column 1: "),
        ("name: genres\ndescription: '\n", "genres.yaml, line 3, column 1: "),
        ("name: genres\ndescription: bell \x07\n", "genres.yaml, line 2, column 19: "),
        ("name: !!python/object/apply:os.system [ls]\n", "genres.yaml, line 1, column 7: "),
        ("name: genres\ndescription: 2024-13-45\n", "genres.yaml, line 2, column 14: this is not a valid timestamp"),
        ("name: genres\nenabled: !!bool maybe\n", "genres.yaml, line 2, column 10: this is not a valid bool"),
        ("name: genres\n---\nname: films\n", "genres.yaml, line 2, column 1: "),
        ("name: genres\n\nname: films\n", "genres.yaml, line 3, column 1: 'name' is already given in line 1; "),
        ("tasks:\n- {body: a, body: b}\n", "genres.yaml, line 2, column 13: 'body' is already given in line 2; "),
        ("name: genres\n? [a]\n: b\n", "genres.yaml, line 2, column 3: "),
    ],
)
def test_text_that_is_not_yaml_is_reported_with_file_and_line(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_text("genres.yaml", text)
    assert refused.value.code == "YAML"
    assert str(refused.value).startswith(place)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- name: genres\n", "genres\n", "42\n"])
def test_a_document_that_is_not_a_mapping_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"genres\.yaml, line 1, column 1: a pipeline is a mapping of fields"):
        parse_text("genres.yaml", text)


def test_a_folder_is_read_by_name_and_only_its_yaml_files(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).write_text(f"name: {name[0]}\n")
    assert files.read_folder(tmp_path) == [Document("a.yml", {"name": "a"}), Document("b.yaml", {"name": "b"})]
    assert files.read_folder(tmp_path / "b.yaml") == [Document("b.yaml", {"name": "b"})]


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"^binary\.yaml, line 1, column 7: the file is not UTF-8 text"):
        files.read_folder(tmp_path)


def test_a_folder_without_yaml_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no \.yaml file"):
        files.read_folder(tmp_path)
    with pytest.raises(ConfigError, match="there is no file or folder"):
        files.read_folder(tmp_path / "nowhere")


# -- options in files of their own ------------------------------------------------------------------------------------

MOVIES: dict[str, Any] = GENRES | {"name": "movies", "target_table": "es:movies"}
INDEX = {"settings": {"number_of_shards": 2}, "mappings": {"properties": {"name": {"type": "keyword"}}}}


def write_movies(folder: Path, index: Any) -> Path:
    file = folder / "movies.yaml"
    file.write_text(yaml.safe_dump(MOVIES | {"options": {"index": index}}))
    return file


@pytest.mark.parametrize("name", ["movies.index.yaml", "movies.yml", "movies.json", "indexes/movies.json"])
def test_an_option_may_stand_in_a_file_beside_the_pipeline(tmp_path: Path, name: str) -> None:
    file = write_movies(tmp_path, name)
    part = tmp_path / name
    part.parent.mkdir(exist_ok=True)
    part.write_text(json.dumps(INDEX) if name.endswith(".json") else yaml.safe_dump(INDEX))
    expected = [Document("movies.yaml", MOVIES | {"options": {"index": INDEX}})]
    assert files.read_folder(tmp_path) == expected
    assert files.read_folder(file) == expected


def test_an_exported_pipeline_has_the_content_of_the_file(tmp_path: Path) -> None:
    file = write_movies(tmp_path, "movies.json")
    (tmp_path / "movies.json").write_text(json.dumps(INDEX))
    (document,) = files.read_folder(file)
    definition = document.valid_definition()
    exported = parse_text("movies.yaml", files.format_text(definition))
    assert exported.fields["options"] == {"index": INDEX}
    assert read_back(definition) == definition


@pytest.mark.parametrize("name", ["../movies.json", "{folder}/../movies.json", "link.json"])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (tmp_path / "movies.json").write_text(json.dumps(INDEX))
    (folder / "link.json").symlink_to(tmp_path / "movies.json")
    write_movies(folder, name.format(folder=folder))
    with pytest.raises(
        ConfigError, match=r"^movies\.yaml, line \d+, column 3: options\.index names '.*', which is outside the folder"
    ):
        files.read_folder(folder)


@pytest.mark.parametrize("name", ["nowhere.yaml", "notes.txt", "", "."])
def test_a_file_that_does_not_exist_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("a: 1")
    write_movies(tmp_path, name)
    with pytest.raises(
        ConfigError, match=rf"^movies\.yaml, line \d+, column 3: options\.index names '{name}', but there is no such"
    ):
        files.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", "- 1\n", "a.yaml, which movies.yaml names: the file is not a mapping of fields"),
        ("a.json", "[]", "a.json, which movies.yaml names: the file is not a mapping of fields"),
        ("a.json", "{\n", "a.json, line 2, column 1: "),
        ("a.yaml", "a: [\n", "a.yaml, line 2, column 1: "),
        ("a.yaml", yaml.safe_dump(GENRES), "a.yaml, which movies.yaml names: the file is a pipeline itself"),
    ],
)
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    file = write_movies(tmp_path, name)
    with pytest.raises(ConfigError) as refused:
        files.read_folder(file)
    assert str(refused.value).startswith(sentence)


def test_a_pipeline_that_names_itself_is_refused(tmp_path: Path) -> None:
    file = write_movies(tmp_path, "movies.yaml")
    with pytest.raises(ConfigError, match="the file is a pipeline itself"):
        files.read_folder(file)


def test_an_option_that_takes_no_file_stays_a_text(tmp_path: Path) -> None:
    file = tmp_path / "genres.yaml"
    file.write_text(yaml.safe_dump(GENRES | {"options": {"index": "a.json", "touch_column": "b.json"}}))
    (document,) = files.read_folder(file)
    assert document.fields["options"] == {"index": "a.json", "touch_column": "b.json"}


# -- queries in files of their own ------------------------------------------------------------------------------------


def write_query(folder: Path, fields: dict[str, Any], sql: str | None = "SELECT id\n  FROM content.genre\n") -> Path:
    file = folder / "genres.yaml"
    file.write_text(yaml.safe_dump({"name": "genres", "target_table": "analytics.genres"} | fields, sort_keys=False))
    if sql is not None:
        (folder / "genres.sql").write_text(sql)
    return file


def test_a_query_may_stand_in_a_file_beside_the_pipeline(tmp_path: Path) -> None:
    (document,) = files.read_folder(write_query(tmp_path, {"source_query_file": "genres.sql"}))
    assert document.definition.source_query == "SELECT id\n  FROM content.genre"
    assert read_back(document.definition) == document.definition
    assert document.place("source_query") == "genres.yaml, line 3, column 1"


def test_the_body_of_a_step_may_stand_in_a_file(tmp_path: Path) -> None:
    step = {"order_index": 1, "task_type": "SQL", "body_file": "genres.sql"}
    (document,) = files.read_folder(write_query(tmp_path, {"tasks": [step, {"order_index": 2}]}))
    assert document.fields["tasks"] == [
        {"order_index": 1, "task_type": "SQL", "body": "SELECT id\n  FROM content.genre"},
        {"order_index": 2},
    ]
    assert document.place("tasks", 0, "body") == "genres.yaml, line 6, column 3"


@pytest.mark.parametrize("name", ["other.sql", "genres.yaml", "../genres.sql", "", ".", None, 1, ["genres.sql"], "\0"])
def test_a_query_file_that_cannot_be_used_is_named_with_its_place(tmp_path: Path, name: object) -> None:
    file = write_query(tmp_path, {"source_query_file": name})
    with pytest.raises(ConfigError, match=r"^genres\.yaml, line 3, column 1: source_query_file names "):
        files.read_folder(file)


def test_a_query_and_its_file_are_not_given_together(tmp_path: Path) -> None:
    file = write_query(tmp_path, {"source_query": "SELECT 1", "source_query_file": "genres.sql"})
    with pytest.raises(ConfigError, match=r"^genres\.yaml, line 4, column 1: source_query_file: remove it, or source_"):
        files.read_folder(file)


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("name: a\ntarget_table: analytics.a\nbatch_size: 0\n", ["line 3, column 1: batch_size"]),
        ("name: a\n", ["line 1, column 1: target_table"]),
        ("\n\nname: a\n", ["line 3, column 1: target_table"]),
        (
            "name: a\ntarget_table: analytics.a\noptions:\n  lookback: x\n  max_rejects: -1\n",
            ["line 4, column 3: options.lookback", "line 5, column 3: options.max_rejects"],
        ),
        ("{name: a, target_table: analytics.a, speed: 1}", ["line 1, column 38: no field `speed`"]),
        (
            "name: a\ntarget_table: analytics.a\ntasks:\n- order_index: 1\n  task_type: SQL\n- task_type: NO\n",
            ["line 6, column 3: tasks[1].order_index", "line 6, column 3: tasks[1].task_type"],
        ),
        ("name: a\ntarget_table: analytics.a\nkey_columns: [id, 'no good']\n", ["line 3, column 19: key_columns[1]"]),
        ("x: &x {speed: 1}\nname: a\ntarget_table: analytics.a\n<<: *x\n", ["line 1, column 8: no field `speed`"]),
        (
            "name: a\ntarget_table: analytics.a\noptions: &o\n  lookback: *o\n",
            ["line 4, column 13: this alias is"],
        ),
    ],
)
def test_every_mistake_is_reported_with_the_place_of_its_field(text: str, places: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_text("a.yaml", text).valid_definition()
    for place in places:
        assert f"a.yaml, {place}" in str(refused.value)


@pytest.mark.promise("D15")
def test_mistakes_of_all_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: [\n")
    (tmp_path / "b.yaml").write_text("name: b\nname: c\n")
    (tmp_path / "c.yaml").write_text("name: c\n")
    reading = files.read(tmp_path)
    assert [mistake.partition(":")[0] for mistake in reading.mistakes] == [
        "a.yaml, line 2, column 1",
        "b.yaml, line 2, column 1",
    ]
    assert reading.documents == (Document("c.yaml", {"name": "c"}),)


def test_a_key_may_replace_the_one_of_a_merged_mapping() -> None:
    text = "base: &base\n  a: 1\n  <<: &more {a: 0, c: 3}\nother:\n  <<: [*base, *more]\n  a: 2\n"
    fields = parse_text("a.yaml", text).fields
    assert fields == {"base": {"a": 1, "c": 3}, "other": {"a": 2, "c": 3}}


# -- variables --------------------------------------------------------------------------------------------------------

STAGE = Variables("prod.env", {"schema": "content", "size": "500", "loop": "${schema}", "odd": "a: [b\n- c"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${schema}.films", "content.films"),
        ("'${schema}.films'", "content.films"),
        ("${size}", 500),
        ("'${size}'", "500"),
        ('["${schema}", 1]', ["content", 1]),
        ("${loop}", "${schema}"),
        ("${odd}", "a: [b\n- c"),
        ("SELECT $1, $$ a $$", "SELECT $1, $$ a $$"),
        ("$${schema}", "$${schema}"),
        ("$$${schema}$$", "$$content$$"),
        ("${} ${1} ${a-b} $schema ${schema", "${} ${1} ${a-b} $schema ${schema"),
    ],
)
def test_variables_are_replaced_in_values(value: str, expected: object) -> None:
    document = parse_text("a.yaml", f"a: {value}\n", STAGE)
    assert document.fields == {"a": expected}


def test_variables_are_not_replaced_in_keys_nor_without_a_file_of_them() -> None:
    assert parse_text("a.yaml", "'${schema}': 1\n", STAGE).fields == {"${schema}": 1}
    assert parse_text("a.yaml", "a: ${nothing}\n").fields == {"a": "${nothing}"}


def test_a_value_that_has_an_alias_is_replaced_once() -> None:
    stage = Variables("a.env", {"a": "${a}b"})
    assert parse_text("a.yaml", "a: &x ${a}\nb: *x\n", stage).fields == {"a": "${a}b", "b": "${a}b"}


def test_every_unknown_variable_is_reported_with_its_place(tmp_path: Path) -> None:
    file = write_query(tmp_path, {"source_query_file": "genres.sql"}, "SELECT 1\n  FROM ${scheme}.films\n")
    with pytest.raises(ConfigError, match=r"^genres\.sql, line 2, column 8: 'prod\.env' has no variable 'scheme'; add"):
        files.read_folder(file, STAGE)
    file.write_text("name: ${x}\nsource_query: |\n  SELECT ${schema}\n    FROM ${y}\n")
    with pytest.raises(ConfigError) as refused:
        files.read_folder(file, STAGE)
    assert [line.partition(";")[0] for line in str(refused.value).splitlines()] == [
        "genres.yaml, line 1, column 7: 'prod.env' has no variable 'x'",
        "genres.yaml, line 4, column 10: 'prod.env' has no variable 'y'",
    ]


def test_variables_are_replaced_in_named_files(tmp_path: Path) -> None:
    file = write_query(tmp_path, {"source_query_file": "genres.sql"}, "SELECT $1 FROM ${schema}.films")
    (document,) = files.read_folder(file, STAGE)
    assert document.fields["source_query"] == "SELECT $1 FROM content.films"
    for name in ("movies.json", "movies.index.yaml"):
        file = write_movies(tmp_path, name)
        (tmp_path / name).write_text('{"settings": {"alias": ["${schema}"], "name": "${schema}"}}')
        (document,) = files.read_folder(file, STAGE)
        assert document.fields["options"]["index"] == {"settings": {"alias": ["content"], "name": "content"}}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("schema=content\n", {"schema": "content"}),
        ("\n# a comment\nexport schema = 'con tent'\nB=\"x\"\n", {"schema": "con tent", "B": "x"}),
        ("A=\nB=x=y # z\nC='\n", {"A": "", "B": "x=y # z", "C": "'"}),
    ],
)
def test_variables_are_lines_of_names_and_values(tmp_path: Path, text: str, values: dict[str, str]) -> None:
    (tmp_path / "prod.env").write_text(text)
    assert read_variables(tmp_path / "prod.env") == Variables("prod.env", values)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"a=1\nnothing\n", "prod.env, line 2, column 1: write NAME=value"),
        (b"a=1\na=2\n", "prod.env, line 2, column 1: 'a' occurs twice"),
        (b"a=\xff", "cannot read the variables: prod.env, line 1, column 3: "),
        (None, "cannot read the variables: prod.env: "),
    ],
)
def test_a_file_of_variables_that_cannot_be_used_is_named(tmp_path: Path, text: bytes | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "prod.env").write_bytes(text)
    with pytest.raises(ConfigError) as refused:
        read_variables(tmp_path / "prod.env")
    assert str(refused.value).startswith(sentence)


# -- schema -----------------------------------------------------------------------------------------------------------


def test_the_published_schema_is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / files.SCHEMA_FILE
    assert published.read_text("utf-8") == files.schema_text(), "run `make schema`"


def test_the_schema_has_what_only_a_file_may_contain() -> None:
    schema = json.loads(files.schema_text())
    assert set(Definition.model_fields) | {"id", "source_query_file"} == set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert "body_file" in schema["$defs"]["Step"]["properties"]
    index = schema["$defs"]["Options"]["properties"]["index"]
    assert {"type": "string"}.items() <= index["anyOf"][1].items()
    assert "lookback" in schema["$defs"]["Options"]["properties"]
