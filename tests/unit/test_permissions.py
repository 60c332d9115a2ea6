"""The table of routes and roles: complete, and the same in the documentation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from vitrine.api import parameters, permissions
from vitrine.api.app import create_app
from vitrine.api.permissions import PERMISSIONS
from vitrine.operations.context import Role
from vitrine.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "access.md"


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(Settings.model_validate({"database_url": "postgresql://vitrine@127.0.0.1:1/none"}))


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Method and path of every route of an application, those of included routers too."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from routes_of(route.effective_candidates())
        else:
            assert route.methods, f"{route.path} is not an ordinary route: the guard refuses it"
            yield from ((method, route.path) for method in route.methods)


@pytest.mark.promise("H2")
def test_every_route_is_in_the_table_and_the_table_has_no_other(app: FastAPI) -> None:
    assert sorted(set(routes_of(app.routes))) == sorted((one.method, one.path) for one in PERMISSIONS)


@pytest.mark.promise("H2")
def test_what_changes_something_needs_more_than_a_viewer() -> None:
    for one in PERMISSIONS:
        if one.method not in ("GET", "HEAD"):
            assert one.role in (Role.OPERATOR, Role.ADMIN), one
    assert {one.path for one in PERMISSIONS if one.role is None} == {"/health/live", "/api/v1/health/live"}


def test_of_several_entries_the_strictest_decides() -> None:
    both = [one for one in PERMISSIONS if one.pattern.match("/pipelines/top_genres/runs/statistics")]
    assert len(both) == 2
    assert permissions.find("GET", "/pipelines/top_genres").methods == {"GET", "PATCH", "DELETE"}
    assert permissions.find("GET", "/pipelines/a/b") == permissions.Found(None, frozenset())
    for path in ("//pipelines", "/pipelines//run", "/api/v1/../pipelines", "/api/v1//pipelines", "/PIPELINES"):
        assert permissions.find("GET", path).permission is None, path


def table() -> str:
    """Routes with their roles, in Markdown; without the prefix, as the page explains it."""
    rows = [
        f"| `{one.method} {one.path.removeprefix(parameters.PREFIX)}` | {one.role or 'no token'} |"
        for one in sorted(PERMISSIONS, key=lambda one: (list(Role).index(one.role) if one.role else -1, one.path))
        if one.path.startswith(parameters.PREFIX) or one.in_browser or one.path == "/metrics"
    ]
    return "\n".join(["| Route | Least role |", "|---|---|", *rows])


@pytest.mark.promise("H2")
def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text("utf-8"), f"copy this into docs/access.md:\n{table()}"


def test_applications_of_a_process_share_their_routes_and_a_further_one_belongs_to_its_application(
    app: FastAPI,
) -> None:
    other = create_app(Settings.model_validate({"database_url": "postgresql://vitrine@127.0.0.1:1/other"}))
    assert app.state.settings != other.state.settings
    shared = {id(one) for one in app.routes} & {id(one) for one in other.routes}
    assert len(shared) == len(app.routes) - 1  # each has the route of its own OpenAPI document
    other.add_api_route("/more", lambda: None)
    assert len(other.routes) == len(app.routes) + 1
