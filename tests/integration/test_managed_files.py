"""Which file manages a definition: what sets the mark, what changes beside the file, and what detaches it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers import plugins
from tests.helpers.access import context
from tests.helpers.accounts import accounts
from tests.helpers.memory_case import MemoryDocuments
from tests.helpers.running import run, succeed
from vitrine.core.status import RequestKind, Status
from vitrine.definition import files
from vitrine.definition.pipeline import AppliedFile
from vitrine.definition.yaml import Document
from vitrine.errors import Forbidden
from vitrine.operations import definitions, plans
from vitrine.operations.access import list_audit_log
from vitrine.operations.bodies.plans import AppliedBody, ApplyBody, DocumentBody
from vitrine.operations.context import Context, Role
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines

GENRES: dict[str, Any] = {
    "name": "genres",
    "source_query": "SELECT id, name FROM content.genre",
    "target_table": "analytics.genres",
    "key_columns": ["id"],
}


@pytest.fixture
def admin(settings: Settings, connection: Connection) -> Context:
    return context(settings, connection)


def body(origin: str = "genres.yaml", *, dry_run: bool = False, **fields: Any) -> ApplyBody:
    return ApplyBody(documents=[DocumentBody(origin=origin, fields=GENRES | fields)], ask=False, dry_run=dry_run)


def apply(admin: Context, origin: str = "genres.yaml", **fields: Any) -> AppliedBody:
    return plans.apply_documents(admin, body(origin, **fields))


def file_of(connection: Connection, name: str = "genres") -> AppliedFile:
    found = pipelines.get(connection, name).file
    assert found is not None
    return found


def written(connection: Connection) -> str:
    """Changes with every write to the row."""
    row = connection.execute("SELECT xmin::text, ctid::text FROM etl.etl_pipelines WHERE name = 'genres'").fetchone()
    return str(row)


@pytest.mark.promise("D26")
def test_apply_names_the_file_and_applying_it_again_writes_nothing(
    admin: Context, connection: Connection, tmp_path: Path, client: TestClient
) -> None:
    file = tmp_path / "genres.yaml"
    file.write_text(files.format_text(Document("", GENRES).definition))
    reading = files.read(file)
    given = ApplyBody(documents=[DocumentBody.of(one) for one in reading.documents], ask=False)
    plans.apply_documents(admin, given)
    first = file_of(connection)
    assert (first.name, first.differs) == ("genres.yaml", False)  # not the folder, which belongs to a machine
    before = written(connection)
    assert [one.outcome for one in plans.apply_documents(admin, given).pipelines] == ["unchanged"]
    assert (written(connection), file_of(connection)) == (before, first)
    for path in ("/pipelines/genres", "/pipelines/genres/status"):
        shown = client.get(path).json()["managed_by"]
        assert (shown["file"], shown["differs"]) == ("genres.yaml", False)
    (listed,) = client.get("/pipelines").json()["items"]
    assert listed["managed_by"] == shown


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ("/home/anna/marts/genres.yaml", "genres.yaml"),
        ("C:\\marts\\genres.yaml", "genres.yaml"),
        ("~/marts/genres.yaml", "genres.yaml"),
        ("team/genres.yaml", "team/genres.yaml"),
        ("\x00genres\x1b[2J.yaml", "\\x00genres\\x1b[2J.yaml"),
        ("", "document"),
    ],
)
def test_the_name_of_a_file_has_no_folder_of_a_machine_and_no_control_character(
    admin: Context, connection: Connection, origin: str, shown: str
) -> None:
    apply(admin, origin)
    assert file_of(connection).name == shown


def test_a_pipeline_that_exists_is_adopted_by_the_file_that_is_equal_to_it(
    admin: Context, connection: Connection
) -> None:
    definitions.create(admin, Document("", GENRES).definition, validate=False)
    assert pipelines.get(connection, "genres").file is None
    plans.apply_documents(admin, body(dry_run=True))
    assert pipelines.get(connection, "genres").file is None
    assert [one.outcome for one in apply(admin).pipelines] == ["unchanged"]
    assert file_of(connection).name == "genres.yaml"
    assert pipelines.get(connection, "genres").config_version == 1
    newest = list_audit_log(admin).items[0]
    assert (newest.operation, newest.after) == ("pipelines.change", {"managed_by": "genres.yaml"})
    apply(admin, "moved.yaml")
    assert file_of(connection).name == "moved.yaml"


def test_pipelines_of_the_demonstration_belong_to_no_file(admin: Context, connection: Connection) -> None:
    plans.store_documents(admin, connection, [Document("genres.yaml", GENRES)])
    assert pipelines.get(connection, "genres").file is None


@pytest.mark.promise("D26")
def test_a_change_beside_the_file_is_kept_and_reported_until_the_file_is_applied_again(
    admin: Context, connection: Connection, client: TestClient
) -> None:
    apply(admin)
    answer = client.patch("/pipelines/genres", json={"batch_size": 7}).json()
    warning = (
        "'genres' is managed by the file genres.yaml, and the next apply of it replaces this change; change the file,"
        " too"
    )
    assert answer["warnings"] == [warning]
    assert [one["code"] for one in answer["findings"]] == ["MANAGED_BY_FILE"]
    assert answer["managed_by"]["differs"]
    assert client.get("/pipelines/genres/status").json()["managed_by"]["differs"]
    # a dry run shows what would be replaced, and replaces nothing
    (planned,) = plans.apply_documents(admin, body(dry_run=True)).pipelines
    assert (planned.outcome, planned.drifted) == ("changed", True)
    assert [one.field for one in planned.differences] == ["batch_size"]
    assert file_of(connection).differs
    (replaced,) = apply(admin).pipelines
    assert (replaced.drifted, pipelines.get(connection, "genres").definition.batch_size) == (True, "auto")
    assert not file_of(connection).differs
    assert not apply(admin, batch_size=9).pipelines[0].drifted


def test_a_change_that_is_taken_back_is_no_difference(client: TestClient, admin: Context) -> None:
    apply(admin)
    assert client.post("/pipelines/genres/disable").json()["managed_by"]["differs"]
    enabled = client.post("/pipelines/genres/enable").json()
    assert (enabled["managed_by"]["differs"], enabled["warnings"]) == (False, [])
    # nor is a reset, which stores the same definition once more
    reset = client.patch("/pipelines/genres", json={"state": "reset"}).json()
    assert (reset["managed_by"]["differs"], reset["warnings"], reset["config_version"]) == (False, [], 4)


def test_a_file_that_takes_over_a_change_agrees_with_the_store_again(admin: Context, connection: Connection) -> None:
    apply(admin)
    definitions.change(admin, "genres", {"batch_size": 7}, validate=False)
    (taken,) = apply(admin, batch_size=7).pipelines
    assert (taken.outcome, taken.drifted, file_of(connection).differs) == ("unchanged", False, False)


def test_a_renamed_pipeline_is_not_the_one_of_the_file(admin: Context, connection: Connection) -> None:
    apply(admin)
    renamed = definitions.change(admin, "genres", {"name": "kinds"}, validate=False)
    assert renamed.managed_by is None
    assert renamed.warnings == [
        "the file genres.yaml does not manage the pipeline any more, because it defines 'genres'; rename it there, too"
    ]
    assert pipelines.get(connection, "kinds").file is None


@pytest.mark.promise("D26")
def test_an_administrator_detaches_a_definition_from_its_file_and_apply_takes_it_back(
    admin: Context, settings: Settings, connection: Connection, client: TestClient
) -> None:
    apply(admin)
    version = pipelines.get(connection, "genres").config_version
    with pytest.raises(Forbidden):
        definitions.detach_file(context(settings, connection, Role.OPERATOR), "genres")
    assert file_of(connection).name == "genres.yaml"
    answer = client.post("/pipelines/genres/detach-file")
    assert (answer.status_code, answer.json()["managed_by"], answer.headers["ETag"]) == (200, None, f'"{version}"')
    newest = list_audit_log(admin).items[0]
    assert (newest.operation, newest.before) == ("pipelines.detach_file", {"managed_by": "genres.yaml"})
    # a second time nothing happens, and nothing is recorded
    assert client.post("/pipelines/genres/detach-file").status_code == 200
    assert list_audit_log(admin).items[0].id == newest.id
    assert client.post("/pipelines/nothing/detach-file").status_code == 404
    assert client.patch("/pipelines/genres", json={"batch_size": 7}).json()["warnings"] == []
    (applied,) = apply(admin).pipelines
    assert (applied.outcome, applied.drifted, file_of(connection).name) == ("changed", False, "genres.yaml")


def test_an_export_says_nothing_of_the_file_and_applying_it_moves_the_pipelines_there(
    admin: Context, connection: Connection, tmp_path: Path
) -> None:
    apply(admin, "all_genres.yaml")
    shown = definitions.get(admin, "genres")
    (exported,) = files.write_folder(tmp_path, [(shown.id, shown.definition())])
    assert "all_genres" not in exported.read_text()
    reading = files.read(tmp_path)
    documents = [DocumentBody.of(one) for one in reading.documents]
    (applied,) = plans.apply_documents(admin, ApplyBody(documents=documents, ask=False)).pipelines
    assert (applied.outcome, file_of(connection).name) == ("unchanged", "genres.yaml")


def test_a_change_that_another_session_stores_during_an_apply_is_a_difference(
    admin: Context, connection: Connection
) -> None:
    apply(admin)
    read_before = pipelines.get(connection, "genres")
    definitions.change(admin, "genres", {"batch_size": 7}, validate=False)
    pipelines.mark_file(connection, [(read_before, "genres.yaml")])
    assert file_of(connection).differs


def test_a_stored_definition_that_is_not_valid_is_replaced_and_marked(admin: Context, connection: Connection) -> None:
    apply(admin, options={"on_reject": "quarantine"})
    connection.execute("UPDATE etl.etl_pipelines SET options = '{\"no_such_option\": 1}'")
    apply(admin, "repaired.yaml")
    assert (file_of(connection).name, file_of(connection).differs) == ("repaired.yaml", False)


def test_the_account_of_the_api_marks_and_detaches(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    with (
        accounts(connection, database_url) as restricted,
        connect(restricted.api, name="tests") as own,
    ):
        api = context(restricted.of_api(settings), own)
        apply(api)
        definitions.change(api, "genres", {"batch_size": 7}, validate=False)
        assert file_of(connection).differs
        definitions.detach_file(api, "genres")
        assert pipelines.get(connection, "genres").file is None


# -- going back to an earlier generation ------------------------------------------------------------------------------


@pytest.fixture
def keeping(settings: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings with a target that keeps the previous generation."""
    folder = plugins.install(plugins.MEMORY_CONNECTOR, tmp_path_factory.mktemp("installed"))
    with plugins.installed(folder):
        memory = MemoryDocuments(tmp_path)
        yield settings.model_copy(update={"connectors": {"memory": {"path": str(memory.folder)}}})


def test_a_rollback_restores_rows_and_leaves_definition_and_file_alone(
    connection: Connection, keeping: Settings
) -> None:
    admin = context(keeping, connection)
    apply(admin, target_table="mem:genres")
    pipeline = pipelines.get(connection, "genres")
    succeed(connection, keeping, pipeline)
    definitions.change(admin, "genres", {"batch_size": 7}, validate=False)
    succeed(connection, keeping, pipeline)
    before = pipelines.get(connection, "genres")
    run(connection, keeping, pipeline, kind=RequestKind.ROLLBACK)
    after = pipelines.get(connection, "genres")
    assert after.status is Status.PAUSED
    assert (after.definition, after.config_version, after.file) == (
        *(before.definition, before.config_version),
        before.file,
    )
    assert file_of(connection).differs
