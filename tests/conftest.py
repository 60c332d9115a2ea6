"""Shared fixtures: servers per session, and a fresh database with a small cinema per test."""

import gc
import itertools
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.helpers import elasticsearch
from tests.helpers.databases import copy_of
from tests.helpers.folders import server_folder
from tests.helpers.processes import free_port
from tests.helpers.proxy import Proxy
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store.migrate import migrate

FILMS, RATINGS = 60, 900
_numbers = itertools.count(1)
_own_elasticsearch = os.environ.get("ELASTICSEARCH_URL")
_session = pytest.StashKey[elasticsearch.Session]()


def pytest_configure(config: pytest.Config) -> None:
    # under nohup, or in the background of a shell, they are ignored, and so by every process that a test starts
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # an example of 0.2 s shows a busy machine, not a mistake
    hypothesis.settings.register_profile("vitrine", deadline=None)
    hypothesis.settings.load_profile("vitrine")
    gc.disable()  # until the tests are collected; see below
    # the processes of pytest-xdist belong to the session of the process that starts them
    if not hasattr(config, "workerinput"):
        config.stash[_session] = elasticsearch.Session()


@pytest.hookimpl(optionalhook=True)  # the tests of mutants run without the plugin
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores, because a test often waits for a server or a process."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, the short ones of integration last: at the end no process waits for another one."""
    items.sort(key=lambda item: item.path.parent.name != "property")


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: a collection of garbage would visit all of them each time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _session in config.stash:
        config.stash[_session].close()


@pytest.fixture(autouse=True)
def _no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings from the developer's shell or from a `.env` file must not affect a test."""
    for name in list(os.environ):
        if name.startswith("VITRINE_") and not name.startswith("VITRINE_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)
    monkeypatch.setitem(Settings.model_config, "env_file", None)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that servers of another user may traverse, unlike pytest's own: as root, they run as `nobody`."""
    with server_folder("vitrine-test-") as folder:
        yield folder.resolve()


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    version = int(os.environ.get("VITRINE_TEST_POSTGRES", "18"))
    with (
        server_folder("vitrine-tests-") as folder,
        EmbeddedPostgres(folder, version=version, port=free_port(), fast=True) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres) -> str:
    name = "vitrine_template"
    postgres.ensure_database(name)
    migrate(postgres.url(name))
    with connect(postgres.url(name), name="tests") as connection:
        cinema.create_schema(connection)
        cinema.fill(connection, films=FILMS, ratings=RATINGS)
    return name


@pytest.fixture(scope="session")
def pooler(postgres: EmbeddedPostgres) -> Iterator[Proxy | None]:
    """With VITRINE_TEST_POOLING set, every test reaches its database through transaction pooling; otherwise None."""
    if not os.environ.get("VITRINE_TEST_POOLING"):
        yield None
        return
    with Proxy(postgres.port or 0, pooling=True) as proxy:
        yield proxy


@pytest.fixture
def proxy(postgres: EmbeddedPostgres) -> Iterator[Proxy]:
    """A proxy before the server that can cut connections, stall them and lose messages."""
    assert postgres.port is not None
    with Proxy(postgres.port) as opened:
        yield opened


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, template: str, pooler: Proxy | None) -> Iterator[str]:
    """A migrated database with a small cinema, for one test only."""
    with copy_of(postgres, template, f"test_{next(_numbers)}") as name:
        url = postgres.tcp_url(name)
        yield url if pooler is None else pooler.url(url)


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings.model_validate(
        {
            "database_url": database_url,
            "lease_ttl": "2s",
            "heartbeat_interval": "300ms",
            "poll_interval": "100ms",
            "allowed_hosts": ["testserver"],  # the name that Starlette's TestClient uses
        }
    )


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with connect(database_url, name="tests") as opened:
        yield opened


@pytest.fixture(scope="session")
def elasticsearch_url() -> str:
    """ELASTICSEARCH_URL, or a server that all processes of the session share; without either the test is skipped."""
    if _own_elasticsearch:
        return _own_elasticsearch
    try:
        return elasticsearch.shared_url()
    except elasticsearch.Unavailable as exc:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs Elasticsearch: {exc}")
        pytest.skip(f"no Elasticsearch: {exc}")


@pytest.fixture
def index_name(elasticsearch_url: str) -> Iterator[str]:
    """A name for the indexes of one test; all that begin with it are removed afterwards."""
    name = f"test-{uuid.uuid4().hex}"
    with elasticsearch.temporary_indexes(elasticsearch_url, name):
        yield name
