"""Settings from files: which `.env` is trusted, and secrets in files of their own."""

import os
from pathlib import Path

import pytest

from vitrine import settings
from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.errors import ConfigError
from vitrine.settings import Settings, child_environment, load

S = "S3CR3T"
URL = f"postgresql://cinema:{S}@db.example/cinema"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, whose `.env` is read as it is by default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(Settings.model_config, "env_file", ".env")
    return tmp_path


def refusal() -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load()
    assert S not in str(refused.value)
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.promise("K13")
@pytest.mark.parametrize(
    "line", ["VITRINE_TRANSFORM_MODULES=evil", "vitrine_transform_modules=evil", "VITRINE_DEVSERVER_CACHE=evil"]
)
def test_a_folder_that_is_no_project_cannot_choose_code(folder: Path, line: str) -> None:
    (folder / ".env").write_text(f"VITRINE_API_PORT=9001\n{line}\n")
    refused = refusal()
    assert refused.code == "ENV_NOT_TRUSTED"
    assert "in .env chooses code that is executed, and this folder is no project of yours" in str(refused)
    assert "vitrine --env-file .env" in str(refused)


def test_other_settings_of_any_folder_are_read(folder: Path) -> None:
    (folder / ".env").write_text("VITRINE_API_PORT=9001\n")
    assert load().api_port == 9001


@pytest.mark.promise("K13")
def test_the_folder_of_a_project_may_choose_code(folder: Path) -> None:
    (folder / ".env").write_text("VITRINE_TRANSFORM_MODULES=ours\n")
    (folder / ".vitrine-project").touch(mode=0o600)
    assert load().transform_modules == ("ours",)


@pytest.mark.promise("K13")
@pytest.mark.parametrize("name", [".vitrine-project", ".env"])
def test_a_file_that_others_may_write_to_is_not_trusted(folder: Path, name: str) -> None:
    (folder / ".env").write_text("VITRINE_TRANSFORM_MODULES=evil\n")
    (folder / ".vitrine-project").touch(mode=0o600)
    (folder / name).chmod(0o622)
    assert refusal().code == "ENV_NOT_TRUSTED"


@pytest.mark.promise("K13")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", [".vitrine-project", ".env"])
def test_a_file_of_another_user_is_not_trusted(folder: Path, name: str) -> None:
    (folder / ".env").write_text("VITRINE_TRANSFORM_MODULES=evil\n")
    (folder / ".vitrine-project").touch(mode=0o600)
    os.chown(folder / name, 65534, 65534)
    assert refusal().code == "ENV_NOT_TRUSTED"


@pytest.mark.promise("K13")
def test_a_link_to_a_marker_elsewhere_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    (folder / ".env").write_text("VITRINE_TRANSFORM_MODULES=evil\n")
    (tmp_path / "elsewhere").touch(mode=0o600)
    (folder / ".vitrine-project").symlink_to(tmp_path / "elsewhere")
    assert refusal().code == "ENV_NOT_TRUSTED"


def test_the_environment_and_a_named_file_may_choose_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_TRANSFORM_MODULES", "ours")
    assert load().transform_modules == ("ours",)
    monkeypatch.delenv("VITRINE_TRANSFORM_MODULES")
    (folder / ".env").write_text("VITRINE_TRANSFORM_MODULES=named\n")
    settings.choose_env_file(Path(".env"))
    assert load().transform_modules == ("named",)


def test_a_named_file_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file of --env-file 'missing': No such file"):
        settings.choose_env_file(Path("missing"))


@pytest.mark.parametrize("content", [None, b"VITRINE_API_PORT=\xff"])
def test_an_env_that_cannot_be_read_is_named(folder: Path, content: bytes | None) -> None:
    if content is None:
        os.mkfifo(folder / ".env")
    else:
        (folder / ".env").write_bytes(content)
    assert "'.env'" in str(refusal())


# -- secrets in files -------------------------------------------------------------------------------------------------


def test_a_secret_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"url": URL, "reader": "postgresql://reader@db/ugc", "key": S}.items():
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setenv("VITRINE_DATABASE_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("VITRINE_SOURCES__UGC_FILE", str(tmp_path / "reader"))
    monkeypatch.setenv("VITRINE_ELASTICSEARCH_API_KEY_FILE", str(tmp_path / "key"))
    settings = load()
    assert settings.store_url == URL
    assert settings.source_url("ugc") == "postgresql://reader@db/ugc"
    api_key = settings.section("elasticsearch", ElasticsearchSettings).api_key
    assert api_key is not None
    assert api_key.get_secret_value() == S


@pytest.mark.parametrize("variable", ["DATABASE_URL_FILE", "ELASTICSEARCH_URL_FILE"])
def test_the_common_names_have_files_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    (tmp_path / "url").write_text(URL if variable.startswith("DATABASE") else f"https://elastic:{S}@search:9200")
    monkeypatch.setenv(variable, str(tmp_path / "url"))
    section = load().section("elasticsearch", ElasticsearchSettings)
    assert (load().database_url is not None) is variable.startswith("DATABASE")
    assert section.is_configured is variable.startswith("ELASTIC")


def test_a_file_in_env_is_read_too(folder: Path) -> None:
    (folder / "url").write_text(URL)
    (folder / ".env").write_text("VITRINE_DATABASE_URL_FILE=url\n")
    assert load().store_url == URL


def test_a_source_may_have_a_name_that_ends_like_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_SOURCES__OLD_FILE", "postgresql://reader@db/old")
    assert load().source_url("old_file") == "postgresql://reader@db/old"


def test_a_value_and_its_file_are_not_given_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text(URL)
    monkeypatch.setenv("VITRINE_DATABASE_URL", URL)
    monkeypatch.setenv("VITRINE_DATABASE_URL_FILE", str(tmp_path / "url"))
    assert str(refusal()) == "VITRINE_DATABASE_URL and VITRINE_DATABASE_URL_FILE are both set; remove one of them"


@pytest.mark.parametrize(
    "content", [b"", b"\n", S.encode() + b"\xff", S.encode() * 20_000, f"mysql://u:{S}@h".encode()]
)
def test_a_file_without_a_valid_secret_is_named_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "url").write_bytes(content)
    monkeypatch.setenv("VITRINE_DATABASE_URL_FILE", str(tmp_path / "url"))
    assert "VITRINE_DATABASE_URL" in str(refusal())


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder"])
def test_a_secret_is_read_from_regular_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    monkeypatch.setenv("VITRINE_DATABASE_URL_FILE", str(path))
    assert f"cannot read the file of VITRINE_DATABASE_URL_FILE '{path}'" in str(refusal())


def test_a_child_process_gets_no_secret_by_its_environment() -> None:
    settings = Settings.model_validate({"database_url": URL, "sources": {"ugc": "postgresql://reader@db/ugc"}})
    environment = child_environment(settings)
    assert S not in str(environment)
    assert environment["VITRINE_SOURCES__UGC"] == "postgresql://reader@db/ugc"
