"""Passwords as PostgreSQL checks them: in URLs with special characters, in files, in a passfile."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.helpers.folders import server_folder
from tests.helpers.processes import environment, free_port, vitrine
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import TransientError
from vitrine.postgres import Connection, connect

PASSWORD = "p@/%#?: ü[]&=+'\\"
IN_PASSFILE = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")


def _row(connection: Connection, query: bytes) -> dict[str, object]:
    return connection.execute(query).fetchall()[0]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server that asks the role `careful` for its password."""
    with (
        server_folder("vitrine-passwords-") as folder,
        EmbeddedPostgres(folder, port=free_port(), fast=True) as own,
    ):
        with connect(own.url("postgres"), name="tests") as admin:
            admin.execute("SELECT set_config('vitrine.password', %s, false)", [PASSWORD])
            admin.execute(
                "DO $$ BEGIN EXECUTE format('CREATE ROLE careful LOGIN PASSWORD %L',"
                " current_setting('vitrine.password')); END $$"
            )
            rules = own.folder / "data" / "pg_hba.conf"
            rules.write_text("host all careful 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            admin.execute("SELECT pg_reload_conf()")
        yield own


def test_a_password_of_special_characters_arrives(server: EmbeddedPostgres) -> None:
    url = f"postgresql://careful:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/postgres"
    with connect(url, name="tests") as connection:
        assert _row(connection, b"SELECT current_user AS name") == {"name": "careful"}
    elsewhere = f"postgresql://127.0.0.1:{server.port}/postgres?user=careful&password={quote(PASSWORD, safe='')}"
    with connect(elsewhere, name="tests") as connection:
        assert _row(connection, b"SELECT current_user AS name") == {"name": "careful"}


@pytest.mark.parametrize("way", ["parameter", "PGPASSFILE"])
def test_a_passfile_is_read_when_the_url_has_no_password(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"127.0.0.1:*:*:careful:{IN_PASSFILE}\n")
    passfile.chmod(0o600)
    url = f"postgresql://careful@127.0.0.1:{server.port}/postgres"
    if way == "PGPASSFILE":
        monkeypatch.setenv("PGPASSFILE", str(passfile))
    else:
        url += f"?passfile={quote(str(passfile))}"
    with connect(url, name="tests") as connection:
        assert _row(connection, b"SELECT current_user AS name") == {"name": "careful"}


def test_a_wrong_password_is_refused_without_showing_it(server: EmbeddedPostgres) -> None:
    with pytest.raises(TransientError) as refused:
        connect(f"postgresql://careful:S3CR3T%40x@127.0.0.1:{server.port}/postgres", name="tests")
    assert refused.value.code == "ACCESS_REFUSED"
    assert "S3CR3T" not in str(refused.value)


def test_a_command_reads_the_url_from_a_file(server: EmbeddedPostgres, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(f"postgresql://careful:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/postgres\n")
    finished = vitrine("list", folder=tmp_path, env=environment(None, VITRINE_DATABASE_URL_FILE=str(secret)))
    # the account is accepted; what is missing is the store
    assert "run `vitrine migrate`" in finished.stderr
