"""YAML and JSON files that would stop, fill or confuse the process that reads them."""

import os
from pathlib import Path

import pytest

from vitrine.definition import files, yaml
from vitrine.definition.yaml import MAX_BYTES
from vitrine.errors import ConfigError

BILLION = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 9)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{number}: &a{number} [*a{number - 1}]\n" for number in range(1, 80))


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        files.read_folder(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.promise("K12")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: genres\ndescription: 2024-02-31\n", "line 2, column 14: this is not a valid timestamp"),
        ("at: 2024-01-01T00:00:00+99:99\n", "line 1, column 5: this is not a valid timestamp"),
        (f"name: genres\nbatch_size: {'9' * 5000}\n", "line 2, column 13: this is not a valid int"),
        ("description: " + "[" * 70, "line 1, column 77: the values are nested deeper than 64 levels"),
        ("description: " + "[" * 100_000, "line 1, column 77: the values are nested deeper than 64 levels"),
        ("description: " + "{a: " * 100_000, "the values are nested deeper than 64 levels"),
        (BILLION, "line 5, column 5: with its aliases this is more than 100000 values; remove aliases"),
        (CHAIN, "the values are nested deeper than 64 levels"),
        ("options: &a {b: *a}\n", "line 1, column 17: this alias is part of the value that it stands for"),
        ("options: &a\n  <<: *a\n", "line 2, column 7: this alias is part of the value that it stands for"),
        ("name: genres\nname: films\n", "line 2, column 1: 'name' is already given in line 1"),
        ("name: a\0b\n", "line 1, column 8: special characters are not allowed"),
        ("name: é\n\x80: a\n", "line 2, column 1: special characters are not allowed"),
    ],
)
def test_a_hostile_document_is_refused_with_file_line_and_column(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "genres.yaml").write_text(text)
    found = refusal(tmp_path)
    assert found.startswith("genres.yaml, line ")
    assert sentence in found


@pytest.mark.promise("K12")
def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "genres.yaml").write_bytes("name: é\nowner: é".encode() + b"\xff\n")
    assert refusal(tmp_path) == "genres.yaml, line 2, column 9: the file is not UTF-8 text; save it as UTF-8"


@pytest.mark.promise("K12")
@pytest.mark.parametrize("named", [False, True], ids=["in a folder", "by its name"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, named: bool) -> None:
    os.mkfifo(tmp_path / "genres.yaml")
    found = refusal(tmp_path / "genres.yaml" if named else tmp_path)
    assert found == "genres.yaml: this is no regular file; give a file, or rename it"


@pytest.mark.promise("K12")
def test_a_device_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "genres.yaml").symlink_to("/dev/zero")
    assert refusal(tmp_path) == "genres.yaml: this is no regular file; give a file, or rename it"


@pytest.mark.promise("K12")
def test_a_folder_that_is_named_like_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "genres.yaml").mkdir()
    assert refusal(tmp_path) == "genres.yaml: this is a folder; give a file, or rename it"


@pytest.mark.promise("K12")
def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "genres.yaml").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert refusal(tmp_path) == f"genres.yaml: the file is larger than {MAX_BYTES // 1024} KB"


@pytest.mark.promise("K12")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"settings": {},\n "settings": {}}', "index.json, line 2, column 2: 'settings' is already given in line 1"),
        ('{\t"a": 1, "a": 2}', "index.json, line 1, column 11: 'a' is already given in line 1"),
        ('{"settings": ' + "9" * 5000 + "}", "index.json: a number in the file has too many digits"),
        ('{"a": ' + "[" * 100_000, "index.json, line 1, column 70: the values are nested deeper than 64 levels"),
    ],
)
def test_a_hostile_json_file_beside_a_pipeline_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "index.json").write_text(text)
    (tmp_path / "genres.yaml").write_text("name: g\ntarget_table: es:g\noptions: {index: index.json}\n")
    assert refusal(tmp_path).startswith(sentence)


@pytest.mark.promise("K12")
def test_a_query_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "query.sql")
    (tmp_path / "genres.yaml").write_text("name: genres\nsource_query_file: query.sql\n")
    assert refusal(tmp_path).startswith("genres.yaml, line 2, column 1: source_query_file names 'query.sql'")


@pytest.mark.promise("K12")
def test_a_file_of_variables_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prod.env")
    with pytest.raises(ConfigError, match=r"prod\.env: this is no regular file"):
        yaml.read_variables(tmp_path / "prod.env")


def test_aliases_that_stay_small_are_read() -> None:
    document = yaml.parse_text("genres.yaml", "name: genres\nkeys: &k [id]\noptions: {a: *k, b: *k}\n")
    assert document.fields["options"] == {"a": ["id"], "b": ["id"]}
