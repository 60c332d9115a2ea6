"""New and edit in a real browser: one server and one browser for all tests of this file."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.helpers.access import context, issue
from tests.helpers.browser import button, new_tab, violations_in_both_themes
from tests.helpers.console import Site, enter, served
from tests.helpers.console_fixtures import browser, connection, database_url, settings
from tests.helpers.folders import server_folder
from tests.helpers.processes import runner
from tests.helpers.running import succeed
from tests.helpers.waiting import wait_until
from vitrine.definition.model import Definition
from vitrine.operations import definitions
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, state

__all__ = ["browser", "connection", "database_url", "settings"]

HOSTILE = "<img src=x onerror='window.harm = 1'>{{ harm = window.harm = 2 }}<script>window.harm = 3</script>"


@pytest.fixture(scope="module")
def tokens(settings: Settings, connection: Connection) -> dict[Role, str]:
    return {role: issue(settings, connection, role) for role in (Role.ADMIN, Role.VIEWER)}


@pytest.fixture(scope="module")
def site(database_url: str, tokens: dict[Role, str]) -> Iterator[Site]:
    assert tokens
    with server_folder("vitrine-test-") as folder, served(database_url, folder) as site:
        yield site


@pytest.fixture
def page(browser: BrowserContext, site: Site, tokens: dict[Role, str]) -> Iterator[Page]:
    """A page of an administrator; it has no error, and no violation of its policy."""
    with new_tab(browser) as tab:
        enter(tab.page, site, site.log_in(tokens[Role.ADMIN]))
        yield tab.page
        assert tab.page.evaluate("window.harm") is None
        assert [one for one in tab.complaints if "WebSocket" not in one] == []
        assert tab.hosts() == {"127.0.0.1"}


def editor(page: Page, label: str = "Query") -> Locator:
    return page.locator(f'.cm-content[aria-label="{label}"]')


def write(page: Page, text: str, label: str = "Query") -> None:
    """Replaces the text of the editor."""
    editor(page, label).click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)


def complete(page: Page, offered: Locator) -> bool:
    """Whether this is offered; the page reads the names of the source while it is used already."""
    page.keyboard.press("Control+Space")
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    return offered.is_visible()


def store(settings: Settings, connection: Connection, name: str, **fields: object) -> None:
    given = {
        "name": name,
        "source_query": "SELECT id, name FROM content.genre",
        "target_table": f"analytics.{name}",
        "key_columns": ["id"],
        **fields,
    }
    definitions.create(context(settings, connection), Definition.model_validate(given), validate=False)


def test_a_mart_is_created_by_form_corrected_previewed_saved_and_run(page: Page, site: Site, database_url: str) -> None:
    page.goto(site.console)
    page.get_by_role("link", name="New pipeline").click()
    page.get_by_label("Name", exact=True).fill("genre_counts")
    write(page, "SELECT g.id, g.name, g.modified\n  FORM content.genre g")
    # the typo is marked where it is, and listed with its sentence
    expect(page.locator(".v-flag")).to_have_text("content.genre")  # FORM could be the name of a column
    expect(page.locator(".cm-line.v-flag-line")).to_have_text("  FORM content.genre g")
    expect(page.locator(".v-finding")).to_contain_text("syntax error")
    button(page, "Go to line 2, column 8").click()
    expect(editor(page).locator(".cm-activeLine")).to_have_text("  FORM content.genre g")
    # names of the source are completed
    write(page, "SELECT g.id, g.name, g.modified\n  FROM content.genre g WHERE g.")
    offered = page.locator(".cm-tooltip-autocomplete li").filter(has_text="description")
    wait_until(lambda: complete(page, offered), timeout=60, what="the names of the source")
    page.keyboard.press("Escape")
    write(page, "SELECT g.id, g.name, g.modified\n  FROM content.genre g")
    expect(page.locator(".v-flag")).to_have_count(0)
    # key and cursor of the table are offered
    button(page, "Key id").click()
    expect(page.get_by_label("Key columns")).to_have_value("id")
    button(page, "Incremental by modified").click()
    expect(page.get_by_label("Incremental key")).to_have_value("modified")
    expect(page.locator(".v-findings").first).to_contain_text("Ready: 3 columns, key id")
    button(page, "Preview").click()
    expect(page.locator(".v-grid th").first).to_contain_text("uuid")
    expect(page.locator(".v-grid tbody tr").first).to_be_visible()
    button(page, "Plan").click()
    expect(page.get_by_label("Plan", exact=True)).to_contain_text("rows added")
    page.get_by_text("The same as YAML").click()
    expect(page.locator(".v-same .v-code")).to_contain_text("incremental_key: modified")
    expect(page.locator(".cm-tooltip-autocomplete")).to_have_count(0)
    assert violations_in_both_themes(page) == []
    button(page, "Save").click()
    expect(page).to_have_url(f"{site.console}/pipelines/genre_counts")
    with server_folder("vitrine-test-") as folder, runner(database_url, folder):
        button(page, "Run").click()
        expect(page.locator(".v-timeline").first).to_contain_text("Success")
    page.get_by_role("link", name="Edit", exact=True).click()
    expect(editor(page)).to_contain_text("content.genre g")


def test_a_stale_page_does_not_overwrite_another_change_and_keeps_its_text(
    page: Page, site: Site, settings: Settings, connection: Connection
) -> None:
    store(settings, connection, "contested")
    page.goto(f"{site.console}/pipelines/contested/edit")
    page.get_by_label("Description", exact=True).fill("mine, typed for a long time")
    definitions.change(context(settings, connection), "contested", {"owner": "another"}, validate=False)
    button(page, "Save").click()
    alert = page.get_by_role("alert").filter(has_text="Not saved: the pipeline has changed")
    expect(alert).to_contain_text("owner")
    expect(page.get_by_label("Description", exact=True)).to_have_value("mine, typed for a long time")
    stored = definitions.get(context(settings, connection), "contested")
    assert (stored.owner, stored.description) == ("another", "")
    # the text survives a reload, too
    page.reload()
    button(page, "Restore it").click()
    expect(page.get_by_label("Description", exact=True)).to_have_value("mine, typed for a long time")
    # it was typed for the older version: the change of the other is still not overwritten without a question
    button(page, "Save").click()
    expect(alert).to_contain_text("owner")
    assert definitions.get(context(settings, connection), "contested").owner == "another"
    button(page, "Save mine over version 2").click()
    expect(page).to_have_url(f"{site.console}/pipelines/contested")
    stored = definitions.get(context(settings, connection), "contested")
    assert (stored.owner, stored.description) == ("", "mine, typed for a long time")


def test_a_changed_query_asks_what_happens_to_the_checkpoint(
    page: Page, site: Site, settings: Settings, connection: Connection
) -> None:
    store(
        settings,
        connection,
        "cursor_mart",
        source_query="SELECT id, name, modified FROM content.genre",
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
    )
    pipeline = pipelines.get(connection, "cursor_mart")
    succeed(connection, settings, pipeline)
    page.goto(f"{site.console}/pipelines/cursor_mart/edit")
    write(page, "SELECT id, upper(name) AS name, modified FROM content.genre")
    button(page, "Save").click()
    expect(page.get_by_text("What happens to the checkpoint?")).to_be_visible()
    expect(page.get_by_label("Plan", exact=True)).to_contain_text("state: keep")
    button(page, "Keep the checkpoint").click()
    expect(page).to_have_url(f"{site.console}/pipelines/cursor_mart")
    assert pipelines.get(connection, "cursor_mart").config_version == pipeline.config_version + 1
    assert state.load_state(connection, pipeline.id).has_checkpoint


def test_text_of_a_source_is_shown_as_text(page: Page, site: Site) -> None:
    page.goto(f"{site.console}/new")
    page.get_by_label("Name", exact=True).fill("hostile")
    page.get_by_label("Key columns").fill("id")
    literal = HOSTILE.replace("'", "''")
    write(page, f"SELECT g.id, '{literal}'::text AS bait FROM content.genre g")
    button(page, "Preview").click()
    expect(page.locator(".v-grid tbody td").nth(1)).to_have_text(HOSTILE)
    page.get_by_text("The same as YAML").click()
    expect(page.locator(".v-same .v-code")).to_contain_text("onerror")


def test_a_task_plan_is_edited_as_yaml(page: Page, site: Site, settings: Settings, connection: Connection) -> None:
    steps = [{"order_index": 10, "task_type": "SQL", "body": "SELECT id, name\n  FROM content.genre"}]
    store(settings, connection, "planned", source_query=None, tasks=steps)
    page.goto(f"{site.console}/pipelines/planned/edit")
    expect(editor(page, "YAML")).to_contain_text("order_index: 10")
    text = "name: planned\ntarget_table: analytics.planned\nkey_columns: [id]\ntasks:\n- order_index: 10\n"
    write(page, f"{text}  task_type: SQL\n  body: |-\n    SELECT id\n      FORM content.genre\n", "YAML")
    expect(page.locator(".v-flag")).to_have_text("content.genre")
    write(page, f"{text}  task_typ: SQL\n", "YAML")
    expect(page.locator(".v-finding").filter(has_text="did you mean `tasks[0].task_type`?")).to_be_visible()
    write(page, f"{text}  task_type: SQL\n  body: SELECT id FROM content.genre\n", "YAML")
    button(page, "Save").click()
    expect(page).to_have_url(f"{site.console}/pipelines/planned")
    assert definitions.get(context(settings, connection), "planned").tasks[0].body == "SELECT id FROM content.genre"


def test_a_viewer_may_neither_create_nor_edit(page: Page, site: Site, tokens: dict[Role, str]) -> None:
    enter(page, site, site.log_in(tokens[Role.VIEWER]))
    for path in ("/new", "/pipelines/genre_counts/edit"):
        page.goto(f"{site.console}{path}")
        expect(page.get_by_text("You may not open this page.")).to_be_visible()
        expect(editor(page)).to_have_count(0)
    expect(page.get_by_role("link", name="New pipeline")).to_have_count(0)
