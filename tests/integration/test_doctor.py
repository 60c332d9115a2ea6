"""The diagnosis of an installation: every fault has its line, its level and how to mend it."""

from typing import Any

import pytest

from tests.helpers.databases import database
from tests.helpers.processes import free_port
from vitrine import settings
from vitrine.embedded import EmbeddedPostgres
from vitrine.operations import doctor
from vitrine.operations.bodies.overview import CheckBody, DoctorReport
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history


def examined(**values: Any) -> DoctorReport:
    return doctor.examine(lambda: Settings.model_validate(values))


def check(report: DoctorReport, subject: str) -> CheckBody:
    return next(one for one in report.checks if one.subject == subject)


def test_a_sound_installation_has_no_error(connection: Connection, settings: Settings) -> None:
    history.register_runner(connection, "one")
    report = examined(database_url=settings.store_url)
    assert report.healthy, report
    assert check(report, "store").text.startswith("at revision ")
    assert check(report, "runners").text == "1 active"
    assert check(report, "database, clock").level == "ok"
    assert check(report, "source default, open transactions").level == "ok"
    assert "a superuser" in check(report, "accounts").text  # the tests use one
    assert check(report, "accounts").level == "warning"
    assert all(one.remedy for one in report.checks if one.level != "ok")


def test_a_database_that_is_down_is_one_line_with_a_remedy() -> None:
    report = examined(database_url=f"postgresql://vitrine:secret@127.0.0.1:{free_port()}/cinema")
    assert not report.healthy
    down = check(report, "database")
    assert (down.level, down.remedy) == ("error", "its URL is VITRINE_DATABASE_URL")
    assert "secret" not in report.model_dump_json()
    assert check(report, "source default").level == "error"


def test_no_database_and_wrong_settings_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(examined(), "database").level == "error"
    monkeypatch.setenv("VITRINE_LEASE_TTL", "soon")
    monkeypatch.setenv("VITRINE_POLL_INTERVALL", "1s")
    report = doctor.examine(settings.load)
    assert "VITRINE_LEASE_TTL" in check(report, "settings").text
    monkeypatch.delenv("VITRINE_LEASE_TTL")
    unknown = check(doctor.examine(settings.load), "settings")
    assert unknown.level == "warning"
    assert "VITRINE_POLL_INTERVALL (did you mean VITRINE_POLL_INTERVAL?)" in unknown.text


def test_a_store_of_another_release_is_reported(connection: Connection, settings: Settings) -> None:
    connection.execute("UPDATE etl.alembic_version SET version_num = '0001'")
    old = check(examined(database_url=settings.store_url), "store")
    assert (old.level, old.remedy) == ("error", "run `vitrine migrate`")
    connection.execute("UPDATE etl.alembic_version SET version_num = '9999'")
    newer = check(examined(database_url=settings.store_url), "store")
    assert (newer.level, newer.remedy) == ("error", "install the release of the other processes")


def test_an_empty_database_of_another_encoding_is_reported(postgres: EmbeddedPostgres) -> None:
    with database(postgres, encoding="SQL_ASCII") as url:
        report = examined(database_url=url)
    assert check(report, "store").text.startswith("at revision none; ")
    assert check(report, "database, encoding").level == "warning"
    assert check(report, "source default, encoding").level == "warning"


@pytest.mark.promise("C5")
def test_the_missing_grants_of_an_account_are_named(connection: Connection, settings: Settings) -> None:
    connection.execute(
        """
        DROP ROLE IF EXISTS doctor_reader; DROP ROLE IF EXISTS doctor_other;
        CREATE ROLE doctor_reader LOGIN; CREATE ROLE doctor_other LOGIN;
        GRANT USAGE ON SCHEMA content TO doctor_reader
        """
    )
    reader, other = (settings.store_url.replace("postgres@", f"{role}@") for role in ("doctor_reader", "doctor_other"))
    try:
        with connect(other, name="tests"):
            report = examined(database_url=reader)
        hidden = check(report, "source default, open transactions")
        assert hidden.level == "error"
        assert "GRANT pg_read_all_stats TO doctor_reader" in (hidden.remedy or "")
        remedies = [one.remedy for one in report.checks if one.remedy]
        assert "GRANT SELECT ON ALL TABLES IN SCHEMA content TO doctor_reader" in remedies
        assert "GRANT USAGE ON SCHEMA ugc TO doctor_reader" in remedies
        assert "GRANT CREATE, USAGE ON SCHEMA etl TO doctor_reader" in remedies
    finally:
        connection.execute("DROP OWNED BY doctor_reader; DROP ROLE doctor_reader; DROP ROLE doctor_other")
