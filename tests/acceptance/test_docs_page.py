"""The documentation page in a real browser, served by a real API process."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.helpers.browser import Tab, new_tab
from tests.helpers.console_fixtures import browser, connection, database_url, settings
from tests.helpers.folders import server_folder
from tests.helpers.processes import environment, free_port, started
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.api.parameters import PREFIX
from vitrine.api.permissions import PERMISSIONS
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.store import pipelines

__all__ = ["browser", "connection", "database_url", "settings"]

OPERATIONS = {(one.method, one.path) for one in PERMISSIONS if one.path.startswith(PREFIX)}


@pytest.fixture
def genres(genres: Pipeline, connection: Connection) -> Iterator[Pipeline]:
    """A pipeline for one test."""
    yield genres
    connection.execute("DELETE FROM etl.etl_pipelines")


@pytest.fixture(scope="module")
def address(database_url: str) -> Iterator[str]:
    """Address of a real API process."""
    port = free_port()
    env = environment(database_url, VITRINE_API_PORT=str(port), VITRINE_CONSOLE="false")
    with server_folder("vitrine-test-") as folder, started(["api"], folder, env, new=True):
        wait_until(lambda: get(port, "/health/live")[0] == 200, timeout=60, what="the start of the API")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def tab(address: str, browser: BrowserContext) -> Iterator[Tab]:
    """The documentation page, reached from the root of the API. The page contacts its own host only, without a
    violation of its policy. It takes seconds to draw, and each test uses another operation of it."""
    with new_tab(browser) as tab:
        tab.page.goto(address)
        expect(tab.page).to_have_url(f"{address}/docs")
        expect(tab.page.locator(".opblock").first).to_be_visible()
        yield tab
        assert tab.complaints == []
        assert tab.hosts() == {"127.0.0.1"}


def operation(page: Page, method: str, path: str) -> Locator:
    return page.locator(f".opblock-{method.lower()}").filter(has=page.locator(f'[data-path="{path}"]'))


def execute(block: Locator, **parameters: str) -> Locator:
    """Fills in an operation with "Try it out" and sends it; returns the response in the page."""
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    for name, value in parameters.items():
        block.get_by_placeholder(name, exact=True).fill(value)
    block.get_by_role("button", name="Execute").click()
    return block.locator(".live-responses-table tbody .response")


def authorize(page: Page, token: str) -> None:
    page.get_by_role("button", name="Authorize", exact=True).click()
    dialog = page.locator(".dialog-ux")
    expect(dialog).to_contain_text("An access token.")
    dialog.get_by_role("textbox").fill(token)
    dialog.get_by_role("button", name="Apply credentials").click()
    dialog.get_by_role("button", name="Close").last.click()
    expect(dialog).to_have_count(0)


def test_the_page_shows_every_operation_in_its_group(tab: Tab) -> None:
    page = tab.page
    expect(page).to_have_title("Vitrine API")
    expect(page.locator(".info .title")).to_contain_text("Vitrine")
    groups = page.locator(".opblock-tag").evaluate_all("tags => tags.map(tag => tag.dataset.tag)")
    assert groups == ["pipelines", "checks", "runs", "sources", "access", "health"]
    shown = {
        (block.locator(".opblock-summary-method").inner_text(), block.locator("[data-path]").get_attribute("data-path"))
        for block in page.locator(".opblock").all()
    }
    assert shown == OPERATIONS


def test_a_run_is_requested_with_try_it_out(tab: Tab, genres: Pipeline, connection: Connection) -> None:
    response = execute(operation(tab.page, "POST", "/api/v1/pipelines/{id}/run"), id=genres.name)
    expect(response.locator(".response-col_status")).to_have_text("202")
    requested = pipelines.get(connection, genres.id)
    assert requested.status is Status.RUN_REQUESTED
    body = response.locator(".response-col_description")
    expect(body).to_contain_text('"status": "RUN_REQUESTED"')
    expect(body).to_contain_text(f'"request_id": "{requested.request_id}"')


def test_the_values_that_the_page_fills_in_are_accepted(tab: Tab, genres: Pipeline) -> None:
    response = execute(operation(tab.page, "GET", "/api/v1/pipelines/{id}/runs"), id=genres.name)
    expect(response.locator(".response-col_status")).to_have_text("200")


def test_the_token_of_the_authorize_button_is_sent_and_not_stored(tab: Tab, genres: Pipeline) -> None:
    authorize(tab.page, "S3CR3T")
    response = execute(operation(tab.page, "GET", "/api/v1/pipelines/{id}"), id=genres.name)
    expect(response.locator(".response-col_status")).to_have_text("200")
    assert tab.requests[-1].all_headers()["authorization"] == "Bearer S3CR3T"
    assert tab.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
