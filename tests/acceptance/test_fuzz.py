"""schemathesis finds no error of the server, and no answer that the OpenAPI document does not allow."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fuzz import running
from tests.helpers.access import issue
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings

OTHERS = (Role.VIEWER, Role.ADMIN, "expired", "missing")
SECONDS = int(os.environ.get("VITRINE_TEST_FUZZ_SECONDS", "12"))


@pytest.mark.promise("H9", "H10")
def test_generated_requests_are_answered_as_documented(database_url: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with running.served(database_url, logs) as address:
        reports = running.fuzz(address, tmp_path, seconds=SECONDS)
    assert reports == [], "\n".join(reports)
    log = next(logs.glob("api-*.log")).read_text("utf-8")
    assert '"level": "error"' not in log, log


@pytest.mark.promise("H1", "H2")
@pytest.mark.parametrize(
    "kind", [Role.OPERATOR, *(pytest.param(one, marks=pytest.mark.nightly) for one in OTHERS)], ids=str
)
def test_generated_requests_to_an_api_with_tokens_are_answered_as_documented(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path, kind: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    reader = issue(settings, connection, Role.VIEWER, "reader")
    match kind:
        case "missing":
            token = None
        case "expired":
            token = issue(settings, connection, Role.ADMIN, "fuzz", ttl=timedelta(milliseconds=1))
        case _:
            token = issue(settings, connection, Role(kind), "fuzz")
    with running.served(database_url, logs) as address:
        reports = running.fuzz(address, tmp_path, seconds=SECONDS // 4, token=token, reader=reader)
    assert reports == [], "\n".join(reports)
    assert '"level": "error"' not in next(logs.glob("api-*.log")).read_text("utf-8")
