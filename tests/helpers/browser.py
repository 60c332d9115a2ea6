"""A headless Chromium for tests of web pages."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

from tests.helpers import tools

TIMEOUT_MILLISECONDS = 60_000
"""Of each action and expectation: the machine of a test may be busy."""

START_MILLISECONDS = 120_000
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # the databases of the tests are in /dev/shm; a browser that finds it full loses its pages
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # as on a machine without network: a page that needs another host fails in the test too
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
# Chromium does not write every violation to the console
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`Content Security Policy: ${event.violatedDirective} blocked ${event.blockedURI}`));
"""


@dataclass(frozen=True)
class Tab:
    """A page, with the requests it sent and the warnings and errors it logged."""

    page: Page
    requests: list[Request] = field(default_factory=list[Request])
    complaints: list[str] = field(default_factory=list[str])

    def hosts(self) -> set[str | None]:
        """Hosts that the page contacted; content inside the page itself, such as data: URLs, has none."""
        addresses = [urlsplit(request.url) for request in self.requests]
        return {address.hostname for address in addresses if address.scheme not in ("data", "blob", "about")}


@contextmanager
def open_browser(folder: Path) -> Generator[BrowserContext]:
    """A browser with a new profile in this folder; it ends with the block."""
    executable = tools.find("chromium")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=executable,
            args=FLAGS,
            # what Chromium writes outside its profile stays in the folder, too
            env={**os.environ, "HOME": str(folder)},
            viewport={"width": 1280, "height": 1000},
            timeout=START_MILLISECONDS,
        ) as context,
    ):
        context.add_init_script(REPORT_VIOLATIONS)
        yield context


@contextmanager
def new_tab(browser: BrowserContext) -> Generator[Tab]:
    """An empty tab without cookies."""
    browser.clear_cookies()
    browser.set_default_timeout(TIMEOUT_MILLISECONDS)
    expect.set_options(timeout=TIMEOUT_MILLISECONDS)
    with browser.new_page() as page:
        yield _watched(page)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def cancel(page: Page) -> None:
    """Leave the dialog; while it fades out, its buttons are still found beside those of the page."""
    button(page, "Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def violations(page: Page) -> list[str]:
    """What axe-core finds; each with the element."""
    found: list[dict[str, Any]] = cast(Any, Axe()).run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]


def violations_in_both_themes(page: Page) -> list[str]:
    """What appears or fades out must have done so: meanwhile its contrast is another one."""
    found: list[str] = []
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function("document.getAnimations().every((one) => one.playState !== 'running')")
        found += violations(page)
    return found


def _watched(page: Page) -> Tab:
    tab = Tab(page)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("warning", "error"):
            tab.complaints.append(message.text)

    # not the bound method `append`: playwright sets an attribute on the function it is given
    page.on("request", lambda request: tab.requests.append(request))
    page.on("console", on_console)
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    return tab
