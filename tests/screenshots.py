"""Pictures of every page of the console, in `screenshots/`: `make screenshots`.

They show `vitrine up` with its sample cinema, and pipelines that fail, run for long and quarantine rows.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.helpers import tools
from tests.helpers.browser import FLAGS
from tests.helpers.folders import server_folder
from tests.helpers.processes import environment, free_port, started
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import connect

FOLDER = Path(__file__).parents[1] / "screenshots"
WIDTHS = {1280: 900, 390: 844}
PAGES = {
    "overview": "",
    "overview-groups": "?group=owner",
    "overview-failed": "?state=failed",
    "pipeline": "/pipelines/user_features",
    "pipeline-running": "/pipelines/ratings_archive",
    "pipeline-failed": "/pipelines/price_history",
    "pipeline-rejects": "/pipelines/film_years",
    "pipeline-reconciled": "/pipelines/film_dim_full",
    "new": "/new",
    "edit": "/pipelines/film_years/edit",
    "edit-managed": "/pipelines/genre_names/edit",
    "edit-refused": "/pipelines/price_history/edit",
    "lineage": "/lineage",
    "lineage-one": "/lineage?node=pipeline:user_features",
    "lineage-list": "/lineage?view=list",
    "runners": "/runners",
    "access": "/access",
    "trace": "/trace",
}
"""Names of the pictures, and the addresses below /console."""

PIPELINES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "price_history",
        "description": "Prices of tickets by day. Its source table is being renamed.",
        "owner": "team-pricing",
        "tags": ["finance"],
        "source_query": "SELECT p.id, p.price, p.day\n  FROM content.ticket_price p\n WHERE p.price > 0",
        "target_table": "analytics.price_history",
        "key_columns": ["id"],
        "schedule_interval": "1m",
    },
    {
        "name": "ratings_archive",
        "description": "Every rating, slowly: the source is busy during the day.",
        "owner": "team-analytics",
        "tags": ["archive"],
        "source_query": "SELECT r.id, r.film_id, r.rating, r.modified\n  FROM ugc.ratings r",
        "target_table": "analytics.ratings_archive",
        "key_columns": ["id"],
        "batch_size": 200,
        "options": {"pause_between_batches": "1500ms"},
    },
    {
        "name": "film_years",
        "description": "The year of each film; a few titles have none.",
        "owner": "team-analytics",
        "tags": ["search"],
        "source_query": "SELECT f.id, f.title, extract(year FROM f.creation_date)::int AS year\n"
        "  FROM content.film_work f",
        "target_table": "analytics.film_years",
        "key_columns": ["id"],
        "checks": [{"type": "not_null", "columns": ["title"]}],
        "options": {"on_reject": "quarantine"},
    },
)

APPLIED: Mapping[str, Any] = {
    "name": "genre_names",
    "description": "Names of genres, for the search.",
    "owner": "team-search",
    "tags": ["search"],
    "source_query": "SELECT g.id, g.name, g.modified\n  FROM content.genre g",
    "target_table": "analytics.genre_names",
    "key_columns": ["id"],
    "schedule_interval": "10m",
    "checks": [{"type": "unique", "columns": ["name"]}],
}
"""A pipeline that a file manages, and that was changed since."""


def main() -> None:
    port = free_port()
    with server_folder("vitrine-screenshots-") as folder:
        env = environment(None, VITRINE_API_PORT=str(port), VITRINE_METRICS_PORT=str(free_port()))
        with started(["up"], folder, env):
            wait_until(lambda: get(port, "/console")[0] == 200, timeout=300, what="the start of `vitrine up`")
            address = f"http://127.0.0.1:{port}"
            _create_strict_mart(folder)
            _add_pipelines(address)
            pages = PAGES | {"trace-result": _trace_of_a_reject(address)}
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=tools.find("chromium"), args=FLAGS)
                _take(browser, f"{address}/console", pages)
                httpx.post(f"{address}/tokens", json={"name": "anna", "role": "admin"}).raise_for_status()
                _take(browser, f"{address}/console", {"login": "/login"})
                browser.close()


def _create_strict_mart(folder: Path) -> None:
    """A mart that does not take every film, so that rows are in quarantine."""
    url = EmbeddedPostgres(folder / ".vitrine" / "postgres").running_url()
    assert url is not None
    with connect(url, name="tests") as connection:
        connection.execute(
            "CREATE TABLE analytics.film_years (id uuid PRIMARY KEY, title text, year int CHECK (year > 1960));"
            "GRANT ALL ON analytics.film_years TO PUBLIC"
        )


def _add_pipelines(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        for definition in PIPELINES:
            answer = client.post("/pipelines", params={"validate": "false"}, json=definition)
            assert answer.status_code == 201, answer.text
            client.post(f"/pipelines/{definition['name']}/run").raise_for_status()
        document = {"origin": "genre_names.yaml", "fields": APPLIED}
        client.post("/apply", json={"documents": [document]}).raise_for_status()
        client.patch("/pipelines/genre_names", json={"batch_size": 500}).raise_for_status()
        client.post("/pipelines/film_dim_full/reconcile", json={"deep": True}).raise_for_status()
        client.post("/pipelines/calendar/pause").raise_for_status()
        wait_until(
            lambda: client.get("/pipelines/price_history").json()["status"] == "FAILED", timeout=120, what="a failure"
        )


def _trace_of_a_reject(address: str) -> str:
    """The address of the trace of a row that is in quarantine."""

    def keys() -> list[str]:
        rejects = httpx.get(f"{address}/pipelines/film_years/rejects").json()["items"]
        return [one["key"] for one in rejects]

    wait_until(lambda: bool(keys()), timeout=120, what="a row in quarantine")
    return f"/trace?pipeline=film_years&key={keys()[0]}"


def _take(browser: Browser, console: str, pages: Mapping[str, str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for theme in ("light", "dark"):
        for width, height in WIDTHS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,
                timezone_id="Europe/Berlin",
                device_scale_factor=2 if width < 500 else 1,
            )
            page = context.new_page()
            for name, path in pages.items():
                page.goto(f"{console}{path}", timeout=120_000)
                page.wait_for_selector("main >> visible=true")
                if name != "login":
                    page.wait_for_function("document.querySelector('.v-age').innerText.includes('updated')")
                time.sleep(1)  # charts and logs
                page.screenshot(path=FOLDER / f"{name}-{width}-{theme}.png", full_page=True)
                sys.stdout.write(f"{name}-{width}-{theme}.png\n")
            context.close()


if __name__ == "__main__":
    main()
