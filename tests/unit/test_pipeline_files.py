"""Pipelines as YAML: parsed, formatted and parsed again."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitrine import pipeline_files
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


@pytest.mark.parametrize("document", [document for _, document in sample_documents()], ids=lambda d: d["name"])
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
