"""The documentation page: its files, their headers, and what its policy allows."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from vitrine.api.app import docs_router

FILES = {
    "/docs": "text/html; charset=utf-8",
    "/docs/docs.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui.css": "text/css; charset=utf-8",
    "/docs/favicon-32x32.png": "image/png",
}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None, redoc_url=None)
    app.include_router(docs_router)
    return TestClient(app)


@pytest.mark.parametrize(("path", "media_type"), FILES.items())
def test_every_file_has_its_media_type(client: TestClient, path: str, media_type: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_the_browser_has_is_not_sent_again(client: TestClient, path: str) -> None:
    first = client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get(path, headers={"If-None-Match": '"another"'}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["docs.py", "app.py", "__init__.py", "main.py", "swagger-ui.css.map", "", "..", "%2e%2e%2fdocs.py", "..%5cdocs.py"],
)
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/docs/{name}", follow_redirects=False).status_code in (307, 404)


def test_the_page_names_only_files_that_are_served_with_it(client: TestClient) -> None:
    page = client.get("/docs").text
    loaded = set(re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]*)"', page))
    assert loaded == set(FILES) - {"/docs"}
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|//", page.removeprefix("<!doctype html>"))


def test_the_policy_of_the_page_allows_no_inline_script_and_no_other_host(client: TestClient) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    directives = {name: set(sources) for name, *sources in (part.split() for part in policy.split(";"))}
    assert directives["default-src"] == {"'none'"}
    assert directives["script-src"] == {"'self'"}
    assert directives["style-src"] == {"'self'"}
    assert {source for sources in directives.values() for source in sources} == {"'none'", "'self'", "data:"}
    assert {name for name, sources in directives.items() if "data:" in sources} == {"img-src"}
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert directives[name] == {"'none'"}
