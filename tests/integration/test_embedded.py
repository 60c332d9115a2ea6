import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.helpers.forked import forked
from tests.helpers.processes import free_port
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import ConfigError

OWNER = """
import sys, time
from pathlib import Path
import psycopg
from vitrine.embedded import EmbeddedPostgres

server = EmbeddedPostgres(Path(sys.argv[1]))
server.start()
with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
    connection.execute("CREATE TABLE kept (n integer)")
print("ready", flush=True)
time.sleep(600)
"""


def ask(server: EmbeddedPostgres, query: bytes = b"SELECT 1") -> object:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def postmaster(server: EmbeddedPostgres) -> int:
    return int((server.folder / "data" / "postmaster.pid").read_text().split()[0])


def kill_an_owner(folder: Path) -> None:
    """Kill a process that owned a server in the folder; the server keeps running without an owner."""
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.kill()


@pytest.mark.parametrize("version", [16, 18])
def test_both_versions_start_and_data_survives_a_restart(tmp_path: Path, version: int) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", version=version, fast=True)
    with server:
        assert ask(server, b"SELECT current_setting('server_version_num')::int / 10000") == version
        with psycopg.connect(server.url("postgres")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        server.restart()
        assert ask(server, b"SELECT n FROM kept") == 42
    with server:
        assert ask(server, b"SELECT n FROM kept") == 42


def test_committed_rows_survive_an_immediate_stop(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg") as server:
        with psycopg.connect(server.url("postgres")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        server.restart("immediate")
        assert ask(server, b"SELECT n FROM kept") == 42


def test_a_second_instance_on_the_same_folder_is_refused_with_folder_pid_and_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "pg"
    with EmbeddedPostgres(folder, fast=True) as server:
        with pytest.raises(ConfigError) as refusal:
            EmbeddedPostgres(folder, fast=True).start()
        assert refusal.value.code == "ALREADY_RUNNING"
        assert str(refusal.value) == (
            f"the embedded PostgreSQL in {folder} is already in use by process {os.getpid()}:"
            " stop that process first (Ctrl-C in its terminal), or set VITRINE_HOME to another folder"
        )
        assert ask(server) == 1


def test_a_folder_can_be_used_again_after_its_instance_has_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
            assert ask(server) == 1


def test_stopping_twice_or_without_a_start_is_harmless(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", fast=True)
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_the_server_of_a_killed_owner_is_taken_over(tmp_path: Path) -> None:
    kill_an_owner(tmp_path / "pg")
    server = EmbeddedPostgres(tmp_path / "pg")
    left_behind = postmaster(server)
    with server:
        assert postmaster(server) == left_behind
        assert ask(server, b"SELECT to_regclass('kept') IS NOT NULL") is True
    assert not (tmp_path / "pg" / "data" / "postmaster.pid").exists()


def test_an_orphaned_server_with_other_settings_is_restarted(tmp_path: Path) -> None:
    kill_an_owner(tmp_path / "pg")
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        assert ask(server, b"SELECT current_setting('fsync')") == "off"
        assert ask(server, b"SELECT to_regclass('kept') IS NOT NULL") is True


def test_a_server_killed_together_with_its_owner_is_started_again(tmp_path: Path) -> None:
    kill_an_owner(tmp_path / "pg")
    server = EmbeddedPostgres(tmp_path / "pg")
    os.kill(postmaster(server), signal.SIGKILL)
    with server:
        assert ask(server, b"SELECT to_regclass('kept') IS NOT NULL") is True


def test_a_pid_that_another_program_has_now_is_not_mistaken_for_the_server(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", fast=True)
    with server:
        pid_file = server.folder / "data" / "postmaster.pid"
        left_behind = pid_file.read_text().split("\n")
    pid_file.write_text("\n".join([str(os.getpid()), *left_behind[1:]]))
    with server:
        assert ask(server) == 1


def test_an_interrupted_initdb_is_repeated(tmp_path: Path) -> None:
    unfinished = tmp_path / "pg" / "data.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        assert ask(server) == 1


def test_data_of_another_version_is_refused_with_both_versions_and_the_remedy(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", version=16, fast=True):
        pass
    with pytest.raises(ConfigError, match=r"created by PostgreSQL 16, but PostgreSQL 18 .*`make clean`") as refusal:
        EmbeddedPostgres(tmp_path / "pg", version=18, fast=True).start()
    assert refusal.value.code == "POSTGRES_VERSION"
    with EmbeddedPostgres(tmp_path / "pg", version=16, fast=True) as server:
        assert ask(server) == 1


def test_a_path_too_long_for_a_socket_works_and_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("long" * 30) / "pg", fast=True)
    with server:
        first_url = server.url()
        assert ask(server) == 1
        socket_folder = Path(str(ask(server, b"SELECT current_setting('unix_socket_directories')")))
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700
    assert not socket_folder.exists()
    with server:
        assert server.url() == first_url
        assert ask(server) == 1


@pytest.mark.parametrize("name", ["with space", "quote's", "comma,comma", "percent%20", "Żółw"])
def test_unusual_folder_names_work(tmp_path: Path, name: str) -> None:
    with EmbeddedPostgres(tmp_path / name, fast=True) as server:
        assert ask(server) == 1


def test_a_strict_umask_has_no_effect(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with EmbeddedPostgres(tmp_path / "a" / "pg", fast=True) as server:
            assert ask(server) == 1
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "pg" / "data").stat().st_mode) == 0o700


@pytest.mark.promise("K10")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
def test_a_closed_folder_above_the_server_s_own_is_named_and_stays_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError) as refusal:
        EmbeddedPostgres(closed / "a" / "pg", fast=True).start()
    assert refusal.value.code == "NO_ACCOUNT"
    assert f"may not enter {closed}: use a folder that every user may enter" in str(refusal.value)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.promise("K10")
def test_the_log_is_readable_by_its_owner_only_and_holds_no_values(tmp_path: Path) -> None:
    folder = tmp_path / "pg"
    folder.mkdir()
    log = folder / "postgres.log"
    log.touch(mode=0o644)  # of an earlier release
    with EmbeddedPostgres(folder, fast=True) as server, psycopg.connect(server.url("postgres"), autocommit=True) as own:
        own.execute("CREATE TABLE kept (id integer PRIMARY KEY, secret text CHECK (secret <> 'canary-2'))")
        for attempt in (
            "SELECT 'canary-1'::integer",
            "INSERT INTO kept VALUES (1, 'canary-2')",
            "INSERT INTO kept VALUES (1, 'canary-3'), (1, 'canary-3')",
            "SELECT 1 / 0, 'canary-4'",
            "DO $$ BEGIN RAISE WARNING 'canary-5'; END $$",
        ):
            with suppress(psycopg.Error):
                own.execute(attempt.encode())
            with suppress(psycopg.Error):
                own.execute("SELECT %s::integer", ["canary-6"])
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    written = log.read_text("utf-8")
    assert "ready to accept connections" in written
    assert "canary" not in written


def connect_as(owner: os.stat_result, url: str) -> str:
    """What the server answers to a process of another user; without a program, because that user may have none."""

    def attempt() -> str:
        os.setgroups([])
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)
        try:
            psycopg.connect(url, connect_timeout=5)
        except psycopg.OperationalError as exc:
            return str(exc)
        return "connected"

    with forked(attempt) as child:
        return child.answer()


@pytest.mark.promise("K10")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("role", ["postgres", "ordinary"])
def test_a_process_of_the_server_s_own_user_is_refused_on_the_socket(tmp_path: Path, role: str) -> None:
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        with psycopg.connect(server.url("postgres")) as administrator:
            administrator.execute("CREATE ROLE ordinary LOGIN")
        owner = (server.folder / "data").stat()
        assert owner.st_uid != 0
        assert "Peer authentication failed" in connect_as(owner, server.url("postgres", user=role))
        with psycopg.connect(server.url("postgres", user=role)) as own:
            assert own.execute("SELECT current_user").fetchone() == (role,)


def test_without_a_port_nothing_listens_on_tcp(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        assert ask(server, b"SELECT current_setting('listen_addresses')") == ""
        with pytest.raises(ConfigError, match="no TCP port"):
            server.tcp_url()


def test_a_port_listens_on_the_loopback_only(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", port=free_port(), fast=True) as server:
        assert ask(server, b"SELECT current_setting('listen_addresses')") == "127.0.0.1"
        with psycopg.connect(server.tcp_url("postgres")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_tcp_without_a_password_is_for_tests_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        EmbeddedPostgres(tmp_path / "pg", port=free_port())
    assert refusal.value.code == "TCP_REFUSED"


def test_a_database_is_created_once_and_found_afterwards(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        server.ensure_database("vitrine")
        server.ensure_database("vitrine")
        with psycopg.connect(server.url()) as connection:
            row = connection.execute(
                "SELECT current_database(), current_setting('TimeZone'), datcollate, pg_encoding_to_char(encoding)"
                " FROM pg_database WHERE datname = current_database()"
            ).fetchone()
    assert row == ("vitrine", "UTC", "C", "UTF8")


def test_a_start_that_fails_reports_the_reason_and_frees_the_folder(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"did not start: .*TCP/IP.*postgres\.log"):
            EmbeddedPostgres(tmp_path / "pg", port=port, fast=True).start()
    with EmbeddedPostgres(tmp_path / "pg", fast=True) as server:
        assert ask(server) == 1
