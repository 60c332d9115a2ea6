"""One database and one browser for all tests of a file with pages: the start of both takes longer than most tests.

A file names what it uses in `__all__`; these take the place of the fixtures for one test.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext

from tests.helpers.browser import open_browser
from tests.helpers.databases import copy_of
from tests.helpers.folders import server_folder
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings


@pytest.fixture(scope="module")
def database_url(postgres: EmbeddedPostgres, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with copy_of(postgres, template, request.path.stem) as name:
        yield postgres.tcp_url(name)


@pytest.fixture(scope="module")
def settings(database_url: str) -> Settings:
    return Settings.model_validate({"database_url": database_url})


@pytest.fixture(scope="module")
def connection(database_url: str) -> Iterator[Connection]:
    with connect(database_url, name="tests") as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with server_folder("vitrine-test-") as folder, open_browser(folder) as browser:
        yield browser
