"""Pipelines as YAML: parsed, formatted and parsed again."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from vitrine import pipeline_files
from vitrine.demo import search
from vitrine.demo.story import sample_documents
from vitrine.errors import ConfigError
from vitrine.model import Definition

GENRES: dict[str, Any] = {
    "name": "genres",
    "source_query": "SELECT id,\n       name\n  FROM content.genre",
    "target_table": "analytics.genres",
    "key_columns": ["id"],
}


def read_back(definition: Definition) -> Definition:
    return Definition.model_validate(pipeline_files.parse_text("a.yaml", pipeline_files.format_text(definition)))


@pytest.mark.parametrize(
    "document", [document for _, document in [*sample_documents(), *search.documents()]], ids=lambda d: d["name"]
)
def test_every_sample_pipeline_survives_the_round_trip(document: dict[str, Any]) -> None:
    definition = Definition.model_validate({name: value for name, value in document.items() if name != "id"})
    assert read_back(definition) == definition


def test_a_query_of_several_lines_is_written_as_a_block() -> None:
    text = pipeline_files.format_text(Definition.model_validate(GENRES))
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
    text = pipeline_files.format_text(Definition.model_validate(GENRES), id="11111111-1111-1111-1111-111111111111")
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
        ("name: genres\nsource_query: SELECT a: b\n", "genres.yaml, line 2: "),
        ("name: genres\ntasks:\n\t- order_index: 1\n", "genres.yaml, line 3: "),
        ("name: [genres\n", "genres.yaml, line 2: "),
        ("name: genres\ndescription: '\n", "genres.yaml, line 3: "),
        ("name: genres\ndescription: bell \x07\n", "genres.yaml, line 2: "),
        ("name: !!python/object/apply:os.system [ls]\n", "genres.yaml, line 1: "),
    ],
)
def test_text_that_is_not_yaml_is_reported_with_file_and_line(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pipeline_files.parse_text("genres.yaml", text)
    assert refused.value.code == "YAML"
    assert str(refused.value).startswith(place)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- name: genres\n", "genres\n", "42\n"])
def test_a_document_that_is_not_a_mapping_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"genres\.yaml: a pipeline is a mapping of fields"):
        pipeline_files.parse_text("genres.yaml", text)


def test_a_folder_is_read_by_name_and_only_its_yaml_files(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).write_text(f"name: {name[0]}\n")
    assert pipeline_files.read_folder(tmp_path) == [("a.yml", {"name": "a"}), ("b.yaml", {"name": "b"})]
    assert pipeline_files.read_folder(tmp_path / "b.yaml") == [("b.yaml", {"name": "b"})]


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"^binary\.yaml: "):
        pipeline_files.read_folder(tmp_path)


def test_a_folder_without_yaml_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no \.yaml file"):
        pipeline_files.read_folder(tmp_path)
    with pytest.raises(ConfigError, match="there is no file or folder"):
        pipeline_files.read_folder(tmp_path / "nowhere")


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
    expected = [("movies.yaml", MOVIES | {"options": {"index": INDEX}})]
    assert pipeline_files.read_folder(tmp_path) == expected
    assert pipeline_files.read_folder(file) == expected


def test_an_exported_pipeline_has_the_content_of_the_file(tmp_path: Path) -> None:
    file = write_movies(tmp_path, "movies.json")
    (tmp_path / "movies.json").write_text(json.dumps(INDEX))
    (document,) = pipeline_files.read_folder(file)
    definition = pipeline_files.definition_of(document)
    exported = pipeline_files.parse_text("movies.yaml", pipeline_files.format_text(definition))
    assert exported["options"] == {"index": INDEX}
    assert read_back(definition) == definition


@pytest.mark.parametrize("name", ["../movies.json", "{folder}/../movies.json", "link.json"])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (tmp_path / "movies.json").write_text(json.dumps(INDEX))
    (folder / "link.json").symlink_to(tmp_path / "movies.json")
    write_movies(folder, name.format(folder=folder))
    with pytest.raises(ConfigError, match=r"^movies\.yaml: options\.index names '.*', which is outside the folder"):
        pipeline_files.read_folder(folder)


@pytest.mark.parametrize("name", ["nowhere.yaml", "notes.txt", "", "."])
def test_a_file_that_does_not_exist_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("a: 1")
    write_movies(tmp_path, name)
    with pytest.raises(ConfigError, match=rf"^movies\.yaml: options\.index names '{name}', but there is no such"):
        pipeline_files.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", "- 1\n", "a.yaml, which movies.yaml names: the file is not a mapping of fields"),
        ("a.json", "[]", "a.json, which movies.yaml names: the file is not a mapping of fields"),
        ("a.json", "{\n", "a.json, line 2: "),
        ("a.yaml", "a: [\n", "a.yaml, line 2: "),
        ("a.yaml", yaml.safe_dump(GENRES), "a.yaml, which movies.yaml names: the file is a pipeline itself"),
    ],
)
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    file = write_movies(tmp_path, name)
    with pytest.raises(ConfigError) as refused:
        pipeline_files.read_folder(file)
    assert str(refused.value).startswith(sentence)


def test_a_pipeline_that_names_itself_is_refused(tmp_path: Path) -> None:
    file = write_movies(tmp_path, "movies.yaml")
    with pytest.raises(ConfigError, match="the file is a pipeline itself"):
        pipeline_files.read_folder(file)


def test_an_option_that_takes_no_file_stays_a_text(tmp_path: Path) -> None:
    file = tmp_path / "genres.yaml"
    file.write_text(yaml.safe_dump(GENRES | {"options": {"index": "a.json", "touch_column": "b.json"}}))
    ((_, fields),) = pipeline_files.read_folder(file)
    assert fields["options"] == {"index": "a.json", "touch_column": "b.json"}
