"""Definitions that a file manages, and what the edit page does when it cannot simply save, in a real browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.helpers.access import context, issue
from tests.helpers.browser import Tab, button, cancel, new_tab
from tests.helpers.console import Site, enter, served
from tests.helpers.console_fixtures import browser, connection, database_url, settings
from tests.helpers.folders import server_folder
from tests.helpers.running import succeed
from vitrine.definition.model import Definition
from vitrine.operations import definitions, plans
from vitrine.operations.access import list_audit_log
from vitrine.operations.bodies.plans import ApplyBody, DocumentBody
from vitrine.operations.context import Context, Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

__all__ = ["browser", "connection", "database_url", "settings"]


@pytest.fixture(scope="module")
def admin(settings: Settings, connection: Connection) -> Context:
    return context(settings, connection)


@pytest.fixture(scope="module")
def token(settings: Settings, connection: Connection) -> str:
    return issue(settings, connection, Role.ADMIN)


@pytest.fixture(scope="module")
def opened(database_url: str, token: str, browser: BrowserContext) -> Iterator[tuple[Site, Tab]]:
    """One server, and one tab that is logged in as an administrator."""
    with (
        server_folder("vitrine-test-") as folder,
        served(database_url, folder) as site,
        new_tab(browser) as tab,
    ):
        enter(tab.page, site, site.log_in(token))
        yield site, tab


@pytest.fixture
def site(opened: tuple[Site, Tab]) -> Site:
    return opened[0]


@pytest.fixture
def page(opened: tuple[Site, Tab]) -> Iterator[Page]:
    """It has no error, and no violation of its policy."""
    tab = opened[1]
    tab.complaints.clear()
    yield tab.page
    assert [one for one in tab.complaints if "WebSocket" not in one] == []


def fields(name: str, **others: object) -> dict[str, object]:
    return {
        "name": name,
        "source_query": "SELECT id, name FROM content.genre",
        "target_table": f"analytics.{name}",
        "key_columns": ["id"],
        **others,
    }


def apply(admin: Context, name: str, **others: object) -> None:
    document = DocumentBody(origin=f"{name}.yaml", fields=fields(name, **others))
    plans.apply_documents(admin, ApplyBody(documents=[document], ask=False))


def create(admin: Context, name: str, **others: object) -> None:
    definitions.create(admin, Definition.model_validate(fields(name, **others)), validate=False)


@pytest.mark.promise("D26")
def test_a_definition_of_a_file_is_read_only_until_it_is_detached(page: Page, site: Site, admin: Context) -> None:
    apply(admin, "from_file", checks=[{"type": "not_null", "columns": ["name"]}])
    definitions.change(admin, "from_file", {"owner": "night-shift"}, validate=False)
    page.goto(f"{site.console}/pipelines/from_file/edit")
    card = page.get_by_label("Managed by the file from_file.yaml")
    expect(card).to_contain_text("vitrine apply from_file.yaml")
    expect(card).to_contain_text("Changed since")
    # every field is shown, and none takes a key
    expect(page.get_by_label("Owner")).to_have_value("night-shift")
    expect(page.get_by_label("Checks as YAML, a list")).to_have_value("- type: not_null\n  columns:\n  - name\n")
    inputs = page.locator("main input, main textarea")
    assert inputs.count() > 10
    assert (
        inputs.evaluate_all("all => all.filter((one) => !one.readOnly && !one.disabled).map((one) => one.ariaLabel)")
        == []
    )
    expect(page.locator('.cm-content[aria-label="Query"]')).to_have_attribute("contenteditable", "false")
    expect(page.locator('[role="checkbox"]')).to_have_attribute("aria-disabled", "true")
    expect(button(page, "Save")).to_have_count(0)
    button(page, "YAML").click()
    expect(page.locator('.cm-content[aria-label="YAML"]')).to_have_attribute("contenteditable", "false")
    # cancelled: nothing changes
    button(page, "Edit here all the same").click()
    cancel(page)
    assert definitions.get(admin, "from_file").managed_by is not None
    button(page, "Edit here all the same").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("if it is applied again, it replaces what you save here")
    dialog.get_by_role("button", name="Edit here all the same").click()
    expect(button(page, "Save")).to_be_visible()
    expect(card).to_have_count(0)
    newest = list_audit_log(admin).items[0]
    assert (newest.operation, newest.via, newest.actor) == ("pipelines.detach_file", "console", "the-admin")
    page.get_by_label("Owner").fill("day-shift")
    button(page, "Save").click()
    expect(page).to_have_url(f"{site.console}/pipelines/from_file")
    expect(page.locator(".v-timeline")).to_contain_text("Detached from its file")
    assert definitions.get(admin, "from_file").owner == "day-shift"


def test_the_page_of_a_pipeline_names_its_file(page: Page, site: Site, admin: Context) -> None:
    apply(admin, "named")
    page.goto(f"{site.console}/pipelines/named")
    definition = page.locator(".v-card").filter(has=page.get_by_role("heading", name="Definition"))
    expect(definition).to_contain_text("Managed by the file named.yaml")
    expect(definition.get_by_text("Changed since")).to_have_count(0)
    definitions.set_enabled(admin, "named", False)
    expect(definition.get_by_text("Changed since")).to_be_visible()


def test_checks_are_edited_in_the_form_and_a_mistake_has_its_place(page: Page, site: Site, admin: Context) -> None:
    create(admin, "checked")
    page.goto(f"{site.console}/pipelines/checked/edit")
    checks = page.get_by_label("Checks as YAML, a list")
    checks.fill("- type: not_null\n  colums: [name]\n")
    mistake = page.locator(".v-finding").filter(has_text="checks: line 2, column 3")
    expect(mistake).to_contain_text("did you mean `checks[0].columns`?")
    checks.fill("- type: not_null\n  columns: [title]\n")
    expect(page.locator(".v-finding").filter(has_text="title")).to_be_visible()  # the query has no such column
    checks.fill("- type: not_null\n  columns: [name]\n")
    expect(page.locator(".v-findings").first).to_contain_text("Ready")
    button(page, "Save").click()
    expect(page).to_have_url(f"{site.console}/pipelines/checked")
    assert [check.label for check in definitions.get(admin, "checked").checks] == ["not_null (name)"]


def test_mine_is_saved_over_a_newer_version_on_request(page: Page, site: Site, admin: Context) -> None:
    create(admin, "contested")
    page.goto(f"{site.console}/pipelines/contested/edit")
    page.get_by_label("Description", exact=True).fill("mine")
    definitions.change(admin, "contested", {"owner": "another", "description": "theirs"}, validate=False)
    button(page, "Save").click()
    button(page, "Save mine over version 2").click()
    expect(page).to_have_url(f"{site.console}/pipelines/contested")
    stored = definitions.get(admin, "contested")
    # the whole definition is as it was typed, not a mixture of both
    assert (stored.description, stored.owner, stored.config_version) == ("mine", "", 3)


def test_a_third_version_between_the_question_and_the_answer_is_not_overwritten(
    page: Page, site: Site, admin: Context
) -> None:
    create(admin, "moving")
    page.goto(f"{site.console}/pipelines/moving/edit")
    page.get_by_label("Description", exact=True).fill("mine")
    definitions.change(admin, "moving", {"owner": "second"}, validate=False)
    button(page, "Save").click()
    expect(button(page, "Save mine over version 2")).to_be_visible()
    definitions.change(admin, "moving", {"owner": "third"}, validate=False)
    button(page, "Save mine over version 2").click()
    expect(button(page, "Save mine over version 3")).to_be_visible()
    assert definitions.get(admin, "moving").owner == "third"


def test_the_text_stays_when_the_pipeline_was_deleted_meanwhile(page: Page, site: Site, admin: Context) -> None:
    create(admin, "vanished")
    page.goto(f"{site.console}/pipelines/vanished/edit")
    page.get_by_label("Description", exact=True).fill("mine")
    definitions.delete(admin, "vanished")
    button(page, "Save").click()
    expect(
        page.get_by_role("alert").filter(has_text="'vanished' was deleted since you opened this page")
    ).to_be_visible()
    expect(page.get_by_label("Description", exact=True)).to_have_value("mine")


def test_a_pipeline_is_renamed_and_its_page_has_the_new_name(page: Page, site: Site, admin: Context) -> None:
    create(admin, "old_name")
    before = definitions.get(admin, "old_name").id
    page.goto(f"{site.console}/pipelines/old_name/edit")
    page.get_by_label("Name", exact=True).fill("new_name")
    button(page, "Save").click()
    expect(page).to_have_url(f"{site.console}/pipelines/new_name")
    expect(page.get_by_role("heading", name="new_name")).to_be_visible()
    stored = definitions.get(admin, "new_name")
    assert (stored.id, stored.target_table) == (before, "analytics.old_name")


def test_a_definition_that_its_source_refuses_is_saved_on_request_without_asking(
    page: Page, site: Site, admin: Context
) -> None:
    create(admin, "early")
    page.goto(f"{site.console}/pipelines/early/edit")
    page.locator('.cm-content[aria-label="Query"]').click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text("SELECT id, name FROM content.not_there_yet")
    button(page, "Save").click()
    alert = page.get_by_role("alert").filter(has_text="not_there_yet")
    expect(alert).to_be_visible()
    assert definitions.get(admin, "early").config_version == 1
    button(page, "Save without asking source and target").click()
    expect(page).to_have_url(f"{site.console}/pipelines/early")
    assert "not_there_yet" in (definitions.get(admin, "early").source_query or "")


def test_the_chart_of_ages_has_the_promise_as_a_line(
    page: Page, site: Site, admin: Context, settings: Settings, connection: Connection
) -> None:
    create(admin, "promising", options={"freshness": "90m"})
    for _ in range(2):
        succeed(connection, settings, pipelines.get(connection, "promising"))
    page.goto(f"{site.console}/pipelines/promising")
    chart = page.locator(".v-chart").filter(has_text="Age before each update")
    expect(chart.locator(".v-chart-legend")).to_have_text("promise: at most 1 h 30 min")
    expect(chart.locator("line.v-limit")).to_have_count(1)
    expect(page.locator(".v-chart").first.locator("line.v-limit")).to_have_count(0)


def test_a_late_mart_shows_the_reason_of_the_list_in_both_pages(page: Page, site: Site, admin: Context) -> None:
    create(admin, "overdue", options={"freshness": "1s"})
    reason = "nothing starts its runs; give it a schedule_interval, or run it"
    page.goto(f"{site.console}?search=overdue")
    expect(page.locator('[data-name="overdue"] .v-cause')).to_have_text(reason)
    page.goto(f"{site.console}/pipelines/overdue")
    expect(page.locator(".v-sentence")).to_have_text(f"Late: {reason}")
