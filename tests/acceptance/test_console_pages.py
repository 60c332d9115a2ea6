"""Lineage, runners, access and trace in a real browser, served by a real process."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.helpers.access import bearer, context, issue
from tests.helpers.browser import button, cancel, new_tab, violations
from tests.helpers.console import Site, enter, served
from tests.helpers.console_fixtures import browser, connection, database_url, settings
from tests.helpers.databases import copy_of
from tests.helpers.folders import server_folder
from tests.helpers.pipelines import create
from tests.helpers.running import create as create_checked
from tests.helpers.running import succeed
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.demo import story
from vitrine.embedded import EmbeddedPostgres
from vitrine.operations import access
from vitrine.operations.context import Role
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue

__all__ = ["browser", "connection", "database_url", "settings"]

HOSTILE = "<img src=x onerror='window.harm = 1'>{{ harm = window.harm = 2 }}"


@pytest.fixture(scope="module")
def tokens(settings: Settings, connection: Connection) -> dict[Role, str]:
    return {role: issue(settings, connection, role) for role in Role}


@pytest.fixture(scope="module")
def site(database_url: str, tokens: dict[Role, str]) -> Iterator[Site]:
    assert tokens  # so that it asks for a login
    with server_folder("vitrine-test-") as folder, served(database_url, folder) as site:
        yield site


@pytest.fixture
def page(browser: BrowserContext, site: Site, tokens: dict[Role, str]) -> Iterator[Page]:
    """Logged in as an administrator. The page contacts its own host only, and reports no error."""
    with new_tab(browser) as tab:
        log_in(tab.page, site, tokens[Role.ADMIN])
        yield tab.page
        assert [one for one in tab.complaints if "WebSocket" not in one] == []
        assert tab.hosts() == {"127.0.0.1"}
        assert tab.page.evaluate("window.harm") is None


def log_in(page: Page, site: Site, token: str) -> None:
    page.context.clear_cookies()
    enter(page, site, site.log_in(token))


def node(page: Page, id: str) -> Locator:
    return page.locator(f'[data-node="{id}"]')


@pytest.fixture(scope="module")
def cinema(connection: Connection) -> None:
    """The pipelines of the demo, a failed one among them, and an index that is made from its mart."""
    for document in story.sample_documents():
        pipelines.create(connection, document.definition)
    create(connection, "films", source_query="SELECT film_id AS id FROM analytics.film_dim", target_table="es:films")
    create(connection, "odd_name", source_query=f'SELECT id FROM content."{HOSTILE[:60]}"')
    connection.execute("""UPDATE etl.etl_pipelines SET status = 'FAILED', last_error_code = 'DATA',
        last_error_message = 'it failed', last_error_at = now() WHERE name = 'film_dim_full'""")


@pytest.mark.usefixtures("cinema")
def test_lineage_shows_the_sample_cinema(page: Page, site: Site) -> None:
    page.goto(f"{site.console}/lineage")
    for id in ("table:/content.genre", "pipeline:film_dim_full", "table:/analytics.film_dim", "reader:calendar_days"):
        expect(node(page, id)).to_be_visible()
    # from the failed pipeline to what is made from its mart, and nothing before it
    for id in ("pipeline:film_dim_full", "table:/analytics.film_dim", "pipeline:films", "table:/es:films"):
        expect(node(page, id)).to_have_attribute("data-tone", "failed")
    expect(node(page, "table:/content.genre")).to_have_attribute("data-tone", "")
    expect(page.locator("[data-node]", has_text=HOSTILE[:60])).to_be_visible()
    expect(node(page, "table:/es:films")).to_have_accessible_name(
        "es:films: index. May be old: film_dim_full, on the way to it, has failed."
    )


@pytest.mark.usefixtures("cinema")
def test_lineage_begins_at_a_node_and_grows_with_clicks(page: Page, site: Site) -> None:
    page.goto(f"{site.console}/lineage?node=table:/es:films")
    expect(page.locator("[data-node]")).to_have_count(2)
    node(page, "pipeline:films").click()
    expect(page.locator("[data-node]")).to_have_count(3)
    node(page, "table:/analytics.film_dim").click()
    expect(node(page, "pipeline:film_dim_full")).to_be_visible()
    expect(page).to_have_url(f"{site.console}/lineage?node=table%3A%2Fanalytics.film_dim")
    button(page, "List").click()
    listed = page.locator("tr[data-name=films]")
    expect(listed).to_contain_text("analytics.film_dim")
    expect(page).to_have_url(re.compile("view=list"))
    page.reload()
    expect(listed).to_be_visible()
    page.get_by_role("searchbox", name="Search a table, mart or pipeline").fill("likes")
    page.get_by_role("button", name="ugc.likes").click()
    expect(page.locator("tr[data-name=audience_segments]")).to_be_visible()


@pytest.mark.usefixtures("cinema", "quarantined")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_control_has_a_name_and_enough_contrast(page: Page, site: Site, theme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=theme)
    for path, shown in (
        ("/lineage?node=table:/analytics.film_dim", "[data-node]"),
        ("/lineage?view=list", "tr[data-name=films]"),
        ("/runners", "tr[data-key=default]"),
        ("/access", "tr[data-key=the-admin]"),
        ("/trace?pipeline=rated&key=4", ".v-trace tr[data-key=title]"),
    ):
        page.goto(f"{site.console}{path}")
        expect(page.locator(shown).first).to_be_visible()
        assert violations(page) == [], path


def test_runners_show_who_is_alive_and_what_they_run(page: Page, site: Site, connection: Connection) -> None:
    pipeline = create(connection, "held")
    history.register_runner(connection, "host:17")
    history.register_runner(connection, "host:16")
    connection.execute("UPDATE etl.etl_runners SET seen_at = now() - interval '2 min' WHERE name = 'host:16'")
    # however long the page takes: a runner is alive for 15 seconds
    connection.execute("UPDATE etl.etl_runners SET seen_at = now() + interval '1 h' WHERE name = 'host:17'")
    pipelines.request_run(connection, pipeline.id, trigger="cli")
    assert queue.claim_next(connection, runner="host:17", ttl=timedelta(minutes=5), only=pipeline.id)
    page.goto(f"{site.console}/runners")
    expect(page.locator('tr[data-key="host:17"]')).to_contain_text("Alive")
    expect(page.locator('tr[data-key="host:16"]')).to_contain_text("Not seen")
    lease = page.locator("tr[data-key=held]")
    expect(lease).to_contain_text("host:17")
    expect(lease).to_contain_text(re.compile(r"in \d min"))  # until the lease ends
    expect(page.locator("tr[data-key=default]")).to_contain_text("2 · no limit")


def test_an_administrator_creates_and_revokes_a_token(
    page: Page, site: Site, settings: Settings, connection: Connection
) -> None:
    page.goto(f"{site.console}/access")
    name = page.get_by_role("textbox", name="Name of the person or program")
    name.fill("Not a name")
    button(page, "Create token").click()
    expect(page.get_by_role("alert").filter(has_text="name:")).to_be_visible()
    expect(name).to_have_value("Not a name")
    name.fill("airflow")
    button(page, "Create token").click()
    expect(page.get_by_role("heading", name="The token airflow is created.")).to_be_visible()
    token = page.locator(".v-token").inner_text()
    assert httpx.get(f"{site.address}/whoami", headers=bearer(token), timeout=20).json()["role"] == "viewer"
    expect(page.locator(".v-once [data-copy]")).to_have_attribute("data-copy", token)
    log = page.get_by_role("table", name="Audit log").locator("tbody tr").first
    expect(log).to_contain_text("tokens.create")
    button(page, "Hide it").click()
    expect(page.locator(".v-token")).to_have_count(0)
    button(page, "Revoke the token airflow").click()
    expect(page.get_by_role("heading", name="Revoke the token airflow?")).to_be_visible()
    cancel(page)
    button(page, "Revoke the token airflow").click()
    button(page, "Revoke").click()
    expect(page.locator("tr[data-key=airflow]")).to_have_count(0)
    expect(log).to_contain_text("tokens.revoke")
    assert "airflow" not in [one.name for one in access.list_tokens(context(settings, connection)).items]
    assert httpx.get(f"{site.address}/whoami", headers=bearer(token), timeout=20).status_code == 401


def test_the_first_token_stays_on_the_page_until_it_is_copied(
    browser: BrowserContext, postgres: EmbeddedPostgres, template: str, tmp_path: Path
) -> None:
    with (
        copy_of(postgres, template, "console_first_token") as name,
        served(postgres.tcp_url(name), tmp_path) as open_site,
        new_tab(browser) as tab,
    ):
        page = tab.page
        page.goto(f"{open_site.console}/access")
        expect(page.get_by_role("heading", name="There are no tokens yet.")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{open_site.console}/runners")
        page.get_by_role("textbox", name="Name of the person or program").fill("alice")
        button(page, "Create token").dblclick()
        token = page.locator(".v-token").inner_text()
        page.get_by_role("textbox", name="Name of the person or program").fill("bob")
        button(page, "Create token").click()
        expect(page.get_by_text("copy the one below, and log in with it")).to_be_visible()
        # no page has rights any more, and the others are left
        expect(other.get_by_label("Access token")).to_be_visible()
        other.close()
        expect(page.locator(".v-token")).to_have_text(token)
        button(page, "I have copied it: log in").click()
        page.get_by_label("Access token").fill(token)
        button(page, "Log in").click()
        expect(page.locator("tr[data-key=alice]")).to_be_visible()


def test_the_audit_log_is_filtered_by_who_changed_something(page: Page, site: Site, connection: Connection) -> None:
    connection.execute(
        """INSERT INTO etl.etl_audit (actor, role, via, operation, pipeline, after)
           VALUES ('mallory', 'admin', 'api', 'pipelines.change', 'other',
                   jsonb_build_object('description', %s::text))""",
        [HOSTILE],
    )
    page.goto(f"{site.console}/access?actor=mallory")
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    expect(rows).to_have_count(1)
    rows.locator("summary").click()
    expect(rows.locator("pre")).to_contain_text("onerror")
    page.get_by_role("textbox", name="Filter by: Pipeline").fill("nothing_like_it")
    expect(page.get_by_text("There is no entry with these filters.")).to_be_visible()


def test_a_viewer_sees_no_access_and_the_service_refuses(page: Page, site: Site, tokens: dict[Role, str]) -> None:
    log_in(page, site, tokens[Role.VIEWER])
    page.goto(f"{site.console}/access")
    expect(page.get_by_role("heading", name="You may not open this page.")).to_be_visible()
    assert page.get_by_role("navigation", name="Menu").get_by_role("link").all_inner_texts() == [
        "Overview",
        "Lineage",
        "Runners",
    ]
    expect(button(page, "Create token")).to_have_count(0)
    answer = httpx.get(f"{site.address}/tokens", headers=bearer(tokens[Role.VIEWER]), timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


@pytest.fixture(scope="module")
def quarantined(connection: Connection, settings: Settings) -> str:
    """The id of a film whose rating does not fit the mart."""
    connection.execute("""
        CREATE TABLE content.films (id integer PRIMARY KEY, title text, rating numeric, modified timestamptz NOT NULL);
        INSERT INTO content.films SELECT n, 'film ' || n, n, '2024-01-01'::timestamptz + n * interval '1 s'
          FROM generate_series(1, 5) n;
        UPDATE content.films SET rating = 1000 WHERE id = 4;
        CREATE TABLE analytics.rated (id integer PRIMARY KEY, title text, rating numeric(3, 1), modified timestamptz);
    """)
    connection.execute("UPDATE content.films SET title = %s WHERE id = 4", [HOSTILE])
    pipeline = create_checked(
        connection,
        settings,
        name="rated",
        source_query="SELECT id, title, rating, modified FROM content.films",
        target_table="analytics.rated",
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        key_columns=["id"],
        options={"on_reject": "quarantine"},
    )
    succeed(connection, settings, pipeline)
    return "4"


def test_a_trace_explains_a_quarantined_film(page: Page, site: Site, connection: Connection, quarantined: str) -> None:
    page.goto(f"{site.console}/trace")
    button(page, "Trace").click()
    expect(page.get_by_text("Give the name of a pipeline and the key of a row.")).to_be_visible()
    page.get_by_role("textbox", name="Key of the row").fill(quarantined)
    page.get_by_role("textbox", name="Pipeline").or_(page.get_by_role("combobox", name="Pipeline")).click()
    page.keyboard.type("rated")
    page.keyboard.press("Enter")
    result = page.locator(".v-trace")
    expect(result.locator(".v-badge").first).to_have_text("In quarantine")
    expect(result).to_contain_text("is in quarantine")
    expect(result).to_contain_text("What to do:")
    expect(result.locator("tr[data-key=title]")).to_contain_text("onerror")
    expect(page).to_have_url(f"{site.console}/trace?pipeline=rated&key={quarantined}")
    page.reload()
    expect(result.locator(".v-badge").first).to_have_text("In quarantine")
    button(page, "Send again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send again").click()
    wait_until(lambda: pipelines.get(connection, "rated").status is Status.RUN_REQUESTED, timeout=60)
    page.goto(f"{site.console}/trace?pipeline=rated&key=none")
    expect(page.get_by_role("alert").filter(has_text="integer")).to_be_visible()
