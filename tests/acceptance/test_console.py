"""The console in a real browser, served by real processes."""

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.helpers.access import context, issue
from tests.helpers.browser import Tab, button, cancel, new_tab, violations_in_both_themes
from tests.helpers.console import Site, enter, served
from tests.helpers.console_fixtures import browser, connection, database_url, settings
from tests.helpers.databases import copy_of
from tests.helpers.folders import server_folder
from tests.helpers.pipelines import create
from tests.helpers.processes import free_port, runner
from tests.helpers.running import create as create_checked
from tests.helpers.running import run
from tests.helpers.waiting import wait_until
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.operations import access
from vitrine.operations.context import Role
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines, queue
from vitrine.store.migrate import migrate

__all__ = ["browser", "connection", "database_url", "settings"]

HOSTILE = (
    "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 2'>{{ harm = window.harm = 3 }}${7*7}"
)

QUERY_OF_HOSTILE = f"SELECT id, $q${HOSTILE}$q$ AS note, 1e3 + 0.5 AS n, name::date AS day FROM content.genre"


@pytest.fixture(autouse=True)
def _empty_store(connection: Connection) -> Iterator[None]:
    """Each test begins without pipelines and runners."""
    yield
    # not TRUNCATE: its locks and those of a page that is still read can wait for each other
    connection.execute("DELETE FROM etl.etl_pipelines")
    connection.execute("DELETE FROM etl.etl_runners")


@pytest.fixture(scope="module")
def site(database_url: str) -> Iterator[Site]:
    with server_folder("vitrine-test-") as folder, served(database_url, folder) as site:
        yield site


@pytest.fixture
def tab(browser: BrowserContext) -> Iterator[Tab]:
    """The page contacts its own host only, without a violation of its policy, and without an error."""
    with new_tab(browser) as tab:
        yield tab
        assert [one for one in tab.complaints if "WebSocket" not in one and "ERR_CONNECTION" not in one] == []
        assert tab.hosts() == {"127.0.0.1"}


def mart(page: Page, name: str) -> Locator:
    return page.locator(f".v-marts tr[data-name={name}]")


def quarantine(connection: Connection, pipeline: Pipeline) -> None:
    """One row, so that the page offers a replay."""
    connection.execute(
        """INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, code, sqlstate, reason, row)
        VALUES (%s, 1, '1', '22P02', '22P02', 'does not fit', '{}')""",
        [pipeline.id],
    )


def test_the_first_visit_of_an_empty_store_says_what_to_do_first(tab: Tab, site: Site, connection: Connection) -> None:
    page = tab.page
    page.goto(site.address)
    expect(page).to_have_url(site.console)
    expect(page).to_have_title("Overview · Vitrine")
    expect(page.get_by_role("heading", name="There are no pipelines yet.")).to_be_visible()
    expect(page.locator(".v-code")).to_contain_text("vitrine apply")
    expect(page.get_by_text("none alive: start one with vitrine runner")).to_be_visible()
    missing = site.get("/console/nothing")
    assert (missing.status_code, "There is no such page." in missing.text) == (404, True)
    page.goto(f"{site.console}/pipelines/none")
    expect(page.get_by_text("there is no pipeline 'none'")).to_be_visible()
    # the open page shows it with its history as soon as there is one
    pipeline = create(connection, "none")
    pipelines.request_run(connection, pipeline.id, trigger="cli")
    assert queue.claim_next(connection, runner="host:17", ttl=timedelta(minutes=5), only=pipeline.id)
    expect(page.locator(".v-timeline")).to_contain_text("Running")


def test_marts_are_found_by_state_text_owner_and_tag_and_the_address_keeps_it(
    tab: Tab, site: Site, connection: Connection
) -> None:
    for name, owner in (("alpha", "team-a"), ("beta", "team-b"), ("gamma", "team-a")):
        create(connection, name, owner=owner, tags=["search"] if name == "beta" else [], schedule_interval="1d")
    connection.execute("UPDATE etl.etl_pipelines SET status = CASE WHEN name = 'gamma' THEN 'FAILED' ELSE 'PAUSED' END")
    connection.execute("""INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at,
            finished_at, config, runner, lease_token)
        SELECT id, 1, 'schedule', 'full', outcome, now() - interval '1 h', now() - interval '59 m 58.5 s', '{}', '', 1
          FROM etl.etl_pipelines, unnest('{SUCCESS,FAILED}'::text[]) AS outcome WHERE name = 'alpha'""")
    connection.execute("""INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, status, started_at,
            finished_at, config, runner, lease_token)
        SELECT id, 1, 'cli', 'reconcile', 'SUCCESS', now(), now(), '{}', '', 1
          FROM etl.etl_pipelines WHERE name = 'gamma'""")
    page = tab.page
    page.goto(site.console)
    expect(page.locator(".v-marts tbody tr")).to_have_count(3)
    expect(mart(page, "gamma")).to_contain_text("Reconcile ·")
    expect(mart(page, "gamma").locator("td.v-number")).to_have_text("–")
    expect(mart(page, "alpha").locator(".v-spark rect[data-tone=success]")).to_have_count(1)
    expect(mart(page, "alpha").locator(".v-spark rect[data-tone=failed] title")).to_contain_text("Failed, 1.5 s, ")
    expect(mart(page, "alpha").locator(".v-spark")).to_have_attribute("aria-label", re.compile("^2 .*1 .*1.5 s"))
    started = mart(page, "alpha").locator("td:nth-child(4) time")
    moment = datetime.fromisoformat(started.get_attribute("datetime") or "").astimezone(UTC)
    expect(started).to_have_attribute("title", re.compile(f"\n{moment:%Y-%m-%d %H:%M:%S} UTC$"))
    expect(page.locator(".v-counter[data-state=paused] .v-figure")).to_have_text("2")
    # no schedule starts a paused or a failed pipeline: its due time would pass without a run
    for name, due in (("alpha", "when it is resumed"), ("gamma", "when it is run again")):
        expect(mart(page, name).locator("td").last).to_have_text(due)
    page.locator(".v-counter[data-state=paused]").click()
    expect(page.locator(".v-marts tbody tr")).to_have_count(2)
    expect(page).to_have_url(f"{site.console}?state=paused")
    page.get_by_label("Search name, target or owner").fill("TEAM-B")
    expect(page.locator(".v-marts tbody tr")).to_have_count(1)
    expect(mart(page, "beta")).to_be_visible()
    expect(page).to_have_url(f"{site.console}?state=paused&search=TEAM-B")
    page.reload()
    expect(page.locator(".v-marts tbody tr")).to_have_count(1)
    expect(page.get_by_label("Search name, target or owner")).to_have_value("TEAM-B")
    page.go_back()
    expect(page.locator(".v-marts tbody tr")).to_have_count(2)
    page.goto(f"{site.console}?group=owner")
    page.get_by_role("button", name="team-a 2").click()
    expect(page.locator(".v-marts tbody tr")).to_have_count(2)
    expect(page).to_have_url(f"{site.console}?owner=team-a&group=owner")
    # every mart that passes the filter is resumed, and the number is named before, once
    button(page, "Resume all").dblclick()
    expect(page.get_by_role("heading", name="Resume 2 pipelines?")).to_be_visible()
    cancel(page)
    assert pipelines.get(connection, "alpha").status is Status.PAUSED
    button(page, "Resume all").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume all").click()
    expect(page.get_by_text("2 done, 0 refused")).to_be_visible()
    assert pipelines.get(connection, "alpha").status is Status.RUN_REQUESTED
    assert pipelines.get(connection, "beta").status is Status.PAUSED
    expect(mart(page, "alpha")).to_contain_text("Waiting")
    # pages follow one another, and each begins at its first row
    connection.execute("""INSERT INTO etl.etl_pipelines (name, target_table, source_query, key_columns)
        SELECT format('many_%s', n), format('analytics.many_%s', n), 'SELECT 1 AS id', '{id}'
          FROM generate_series(100, 219) n""")
    page.goto(f"{site.console}?search=many_")
    for first, count in (("many_100", 50), ("many_150", 50), ("many_200", 20)):
        expect(page.locator(".v-marts tbody tr")).to_have_count(count)
        expect(mart(page, first)).to_be_in_viewport()
        if count == 50:
            button(page, "Next 50").click()
    expect(button(page, "Next 50")).to_be_hidden()
    expect(page).to_have_url(f"{site.console}?search=many_&after=many_199")
    button(page, "First page").click()
    expect(mart(page, "many_100")).to_be_in_viewport()


def test_a_run_is_watched_paused_and_resumed(
    tab: Tab, site: Site, connection: Connection, database_url: str, tmp_path: Path
) -> None:
    create(
        connection,
        "ratings",
        source_query="SELECT id, rating FROM ugc.ratings",
        batch_size=20,
        options={"pause_between_batches": "700ms"},  # half a minute: it must not end before it is paused
    )
    page = tab.page
    page.goto(site.console)
    mart(page, "ratings").get_by_role("link").click()
    expect(page).to_have_title("ratings · Vitrine")
    page.evaluate("window.mark = 'same page'")
    with runner(database_url, tmp_path):
        button(page, "Run").click()
        bar = page.get_by_role("progressbar")
        expect(bar).to_be_visible()
        first = int(bar.get_attribute("aria-valuenow") or 0)
        wait_until(lambda: int(bar.get_attribute("aria-valuenow") or 0) > first, timeout=60, what="progress")
        expect(page.get_by_text("of about 900 rows")).to_be_visible()
        button(page, "Reload").click()
        expect(page.locator(".v-timeline")).to_contain_text("Reloaded by anonymous (console)")
        button(page, "Pause").click()
        expect(page.locator(".v-head .v-badge").first).to_have_text("Paused")
        read = pipelines.get(connection, "ratings")
        assert read.status is Status.PAUSED
        expect(page.locator(".v-timeline")).to_contain_text("Paused by anonymous (console)")
        button(page, "Resume").click()
        expect(bar).to_be_visible()
        page.evaluate("window.scrollTo(0, 150)")
        before = bar.get_attribute("aria-valuenow")
        wait_until(lambda: bar.get_attribute("aria-valuenow") != before, timeout=60, what="further progress")
        assert page.evaluate("[window.mark, scrollY]") == ["same page", 150], "no refresh moves the page"
        button(page, "Pause").click()
        expect(page.locator(".v-head .v-badge").first).to_have_text("Paused")


ACTIONS = (
    ("Full run", "Read everything of {name} again?", "Full run requested"),
    ("Verify", None, "Reconcile requested"),
    ("Repair", "Repair {name}?", "Reconcile requested"),
    ("Replay", None, "Replay requested"),
    ("Disable", "Disable {name}?", "Changed by anonymous (console): enabled"),
    ("Enable", None, "Changed by anonymous (console): enabled"),
)
"""Buttons of a pipeline, the question that each asks first, and what the timeline has afterwards."""


def test_the_buttons_of_a_pipeline_do_what_they_name_and_ask_before_what_cannot_be_undone(
    tab: Tab, site: Site, connection: Connection
) -> None:
    page = tab.page
    for label, question, event in ACTIONS:
        name = label.lower().replace(" ", "_")
        pipeline = create(
            connection,
            name,
            source_query="SELECT id, name, modified FROM content.genre",
            mode="incremental",
            incremental_key="modified",
            incremental_id_key="id",
            enabled=label != "Enable",
        )
        quarantine(connection, pipeline)
        page.goto(f"{site.console}/pipelines/{name}")
        if question is not None:
            button(page, label).click()
            expect(page.get_by_role("dialog", name=question.format(name=name))).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)
            expect(button(page, label)).to_be_focused()
            assert pipelines.get(connection, name).status is Status.IDLE
        button(page, label).click()
        if question is not None:
            page.get_by_role("dialog").get_by_role("button", name=label).click()
        expect(page.locator(".v-timeline")).to_contain_text(event)
        wanted = Status.IDLE if label.endswith("able") else Status.RUN_REQUESTED
        stored = pipelines.get(connection, name)
        assert (stored.status, stored.definition.enabled) == (wanted, label != "Disable")


@pytest.mark.promise("H32")
def test_a_failing_pipeline_shows_its_sentence_and_hostile_text_is_only_text(
    tab: Tab, site: Site, connection: Connection, settings: Settings
) -> None:
    hostile = create_checked(
        connection,
        settings,
        name="hostile",
        description=HOSTILE,
        owner=HOSTILE[:200],
        source_query=QUERY_OF_HOSTILE,
        target_table="analytics.hostile",
        key_columns=["id"],
        schedule_interval="1h",
    )
    executed = run(connection, settings, hostile)
    assert executed.error is not None
    connection.execute(
        """UPDATE etl.etl_pipelines SET last_error_message = %(text)s, fresh_as_of = now() - interval '3 hours'""",
        {"text": f"pipeline 'hostile': {HOSTILE}; correct it"},
    )
    connection.execute(
        """INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, column_name, code, sqlstate, reason, row)
        SELECT pipeline_id, id, %(text)s, %(text)s, '22P02', '22P02', %(text)s, '{}' FROM etl.etl_runs LIMIT 1""",
        {"text": HOSTILE},
    )
    connection.execute("UPDATE etl.etl_runs SET error_message = %(text)s, runner = %(text)s", {"text": HOSTILE})
    page = tab.page
    page.goto(site.console)
    row = mart(page, "hostile")
    expect(row).to_contain_text("Failed")
    expect(row).to_contain_text("Late")
    expect(row.locator(".v-cause")).to_contain_text("the last run failed with")
    expect(row.locator(".v-why")).to_have_text(f"pipeline 'hostile': {HOSTILE}; correct it")
    row.get_by_role("link").click()
    error = page.get_by_role("region", name="Last error")
    expect(error.locator(".v-error-text")).to_have_text(f"pipeline 'hostile': {HOSTILE}; correct it")
    expect(page.locator(".v-timeline .v-error-text").first).to_have_text(HOSTILE)
    expect(page.locator(".v-table td").first).to_have_text(HOSTILE)
    expect(page.locator(".v-sql")).to_have_text(QUERY_OF_HOSTILE)
    expect(page.get_by_role("heading", name="Log of run", exact=False)).to_be_visible()
    page.goto(f"{site.console}?search={HOSTILE}&owner={HOSTILE}".replace("<", "%3C").replace("#", "%23"))
    expect(page.get_by_text("No pipeline matches these filters.").or_(mart(page, "hostile"))).to_be_visible()
    assert page.evaluate("[window.harm, document.querySelectorAll('img[src=x]').length]") == [None, 0]
    # and if text became markup all the same, the policy would stop it
    blocked = page.evaluate("""async () => {
        const script = document.createElement("script");
        script.textContent = "window.harm = 4";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<b id=b onclick='window.harm = 5'>x</b>");
        document.getElementById("b").click();
        return window.harm;
    }""")
    assert blocked is None
    assert any("Content Security Policy" in one for one in tab.complaints)
    tab.complaints.clear()


RAW_MESSAGES = """() => {
    const ids = Object.entries(mounted_app.elements).flatMap(([id, one]) =>
        (one.events || []).map((event) => ({ id: Number(id), listener_id: event.listener_id })));
    const own = { client_id: window.clientId };
    for (const one of ids)
        for (const args of [[], ["null"], ["1"], ['"x"'], ["{"]]) socket.emit("event", { ...one, ...own, args });
    for (const name of ["event", "ack", "handshake", "javascript_response", "log", "other"])
        for (const message of [null, 1, "x", [], {}, own, { ...own, id: "x", next_message_id: "x" }])
            socket.emit(name, message);
    socket.emit("event");
    return ids.length;
}"""
"""Every handler of the page, also of controls that it does not show, and what no page sends."""


@pytest.mark.promise("H2", "H30")
def test_a_viewer_has_no_buttons_and_a_revoked_token_leaves_the_page(
    postgres: EmbeddedPostgres, template: str, settings: Settings, tmp_path: Path, browser: BrowserContext
) -> None:
    with ExitStack() as stack:
        # a store with tokens: the process of the other tests has none
        url = postgres.tcp_url(stack.enter_context(copy_of(postgres, template, "console_with_tokens")))
        connection = stack.enter_context(connect(url, name="tests"))
        alpha = create(connection, "alpha", tags=["search"])
        quarantine(connection, alpha)
        token = issue(settings, connection, Role.VIEWER, "analyst")
        operator = issue(settings, connection, Role.OPERATOR, "operator")
        site = stack.enter_context(served(url, tmp_path))
        page = stack.enter_context(new_tab(browser)).page
        enter(page, site, site.log_in(operator))
        page.goto(f"{site.console}/pipelines/alpha")
        button(page, "Run").click()
        expect(page.locator(".v-timeline")).to_contain_text("Run requested by operator (console)")
        button(page, "Log out").click()
        expect(page).to_have_title("Log in · Vitrine")
        page.goto(f"{site.console}/pipelines/alpha")
        page.get_by_label("Access token").fill(token)
        button(page, "Log in").click()
        expect(page.locator(".v-title")).to_have_text("alpha")
        expect(page).to_have_url(f"{site.console}/pipelines/alpha")
        names = set(page.locator("main button:visible").all_inner_texts())
        assert names <= {"Copy", "Log", "Older"}, names
        before = pipelines.get(connection, "alpha")
        assert page.evaluate(RAW_MESSAGES) >= 5
        page.goto(f"{site.console}?tag=search")
        expect(mart(page, "alpha")).to_be_visible()
        expect(button(page, "Run all")).to_have_count(0)
        expect(page.locator(".v-who")).to_have_text("analyst")
        assert pipelines.get(connection, "alpha").request_id == before.request_id
        changes = connection.execute("SELECT operation FROM etl.etl_audit WHERE actor = 'analyst'").fetchall()
        assert [one["operation"] for one in changes] == ["sessions.open"]
        assert "Task exception was never retrieved" not in site.process.output()
        access.revoke_token(context(settings, connection), "analyst")
        expect(page).to_have_title("Log in · Vitrine")


def test_the_page_comes_back_after_a_restart_of_the_server(
    database_url: str, tmp_path: Path, connection: Connection, browser: BrowserContext
) -> None:
    create(connection, "alpha")
    with new_tab(browser) as tab:
        page = tab.page
        with served(database_url, tmp_path) as site:
            page.goto(site.console)
            expect(mart(page, "alpha")).to_be_visible()
            assert site.process.stop(signal.SIGTERM) == 0
        create(connection, "beta")
        with served(database_url, tmp_path, port=site.port):
            expect(mart(page, "beta")).to_be_visible()


def test_pages_outlive_the_database_and_so_does_what_was_typed(
    browser: BrowserContext, settings: Settings, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedPostgres(tmp_path / "server", port=free_port(), fast=True))
        server.ensure_database("vitrine")
        url = server.tcp_url()
        migrate(url)
        with connect(url, name="tests") as connection:
            connection.execute("CREATE SCHEMA content; CREATE TABLE content.genre (id int PRIMARY KEY)")
            create(connection, "alpha", source_query="SELECT id FROM content.genre")
            token = issue(settings, connection, Role.ADMIN, "anna")
        site = stack.enter_context(served(url, tmp_path))
        tab = stack.enter_context(new_tab(browser))
        page, edit = tab.page, browser.new_page()
        stack.callback(edit.close)
        enter(page, site, site.log_in(token))
        page.goto(site.console)
        expect(mart(page, "alpha")).to_be_visible()
        edit.goto(f"{site.console}/pipelines/alpha/edit")
        expect(edit.get_by_text("Ready: 1 columns")).to_be_visible()
        server.stop("immediate")
        for one in (page, edit):
            expect(one.locator(".v-banner")).to_have_text(
                "What you see may be old: the database does not respond. Trying again."
            )
        expect(mart(page, "alpha")).to_be_visible()
        for width in (390, 1280):  # in sight, however far down one reads
            page.set_viewport_size({"width": width, "height": 350})
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            assert page.evaluate("scrollY") > 83
            expect(page.locator(".v-banner")).to_be_in_viewport()
        database = page.locator(".v-health-item", has_text="Database")
        expect(database).to_contain_text("does not respond")
        edit.get_by_role("textbox", name="Description").fill("typed meanwhile")
        silence = edit.locator(".v-finding", has_text="The database of Vitrine does not respond.")
        expect(silence).to_be_visible()
        server.start()
        for one in (page, edit):
            expect(one.locator(".v-banner")).to_be_hidden()
        expect(database).to_contain_text("responds")
        # the definition is checked again, although nothing more is typed
        expect(silence).to_have_count(0)
        expect(edit.get_by_text("Ready: 1 columns")).to_be_visible()
        button(edit, "Save").click()
        expect(edit.locator(".v-head")).to_contain_text("typed meanwhile")
        assert tab.complaints == []
        assert "exception" not in site.process.output()


def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(
    tab: Tab, site: Site, connection: Connection, settings: Settings
) -> None:
    good = create_checked(
        connection,
        settings,
        name="good",
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.good",
        key_columns=["id"],
        owner="o" * 200,
        tags=["t" * 63],
    )
    run(connection, settings, good)
    create(connection, "n" * 63)
    bad = create(connection, "bad", schedule_interval="1m", source_query="SELECT id FROM content.none")
    run(connection, settings, bad)
    connection.execute("UPDATE etl.etl_pipelines SET created_at = now() - interval '1 day'")
    page = tab.page
    for path in ("", "?state=failed&group=owner", "/pipelines/good", "/pipelines/bad"):
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(f"{site.console}{path}")
        expect(page.locator("main")).to_contain_text("bad" if "good" not in path else "good")
        assert violations_in_both_themes(page) == [], path
        page.set_viewport_size({"width": 390, "height": 844})
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{path} is wider than a phone"
    # a message of success, a dialog, and a message of a refusal
    button(page, "Run").click()
    expect(page.locator(".q-notification")).to_be_visible()
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'bad'")
    button(page, "Disable").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations_in_both_themes(page) == []
    cancel(page)
    page.goto(f"{site.console}?state=failed")
    button(page, "Pause all").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause all").click()
    expect(page.get_by_text("0 done, 1 refused")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert violations_in_both_themes(page) == []
