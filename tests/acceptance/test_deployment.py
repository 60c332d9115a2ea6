"""What containers and `make up` do, without Docker: every service on real servers, and the recipes with a recorder."""

import os
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg import sql

from bench import psql
from tests.helpers import compose
from tests.helpers.compose import ROOT, Service
from tests.helpers.folders import server_folder
from tests.helpers.processes import environment, free_port, started, vitrine
from tests.helpers.waiting import wait_until
from vitrine.embedded import EmbeddedPostgres

SERVICES = compose.services()
HEALTH = ROOT / "infra" / "image" / "health.py"

# stands in for Docker: writes down its arguments, and answers like `vitrine token create`
DOCKER = """#!/bin/sh
echo "$@" >> "$RECORD"
case "$*" in *etl_token*) echo "vtr_token-$(wc -l < "$RECORD")";; esac
"""


@pytest.fixture(autouse=True)
def _needs_openssl() -> None:
    """`make up` creates passwords and certificate with it."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs the command openssl: install the package openssl")
        pytest.skip("no command openssl")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make up` needs of a clone, and a `docker` that only records."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "infra", folder / "infra", ignore=shutil.ignore_patterns("local"))
    shutil.copy(ROOT / "Makefile", folder)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "docker").chmod(0o755)
    return folder


def make(clone: Path, *arguments: str) -> list[str]:
    """The calls of docker, without the common options."""
    record = clone.parent / "record"
    record.unlink(missing_ok=True)
    env = {**os.environ, "PATH": f"{clone.parent}/bin:{os.environ['PATH']}", "RECORD": str(record)}
    done = subprocess.run(["make", *arguments], cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    common = "compose --file infra/docker-compose.yml --env-file infra/local/env "
    return [line.removeprefix(common) for line in record.read_text().splitlines() if line.startswith(common)]


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


@pytest.mark.promise("K17")
def test_make_up_creates_random_secrets_that_only_their_owner_can_read(clone: Path) -> None:
    local = clone / "infra" / "local"
    make(clone, "up")
    assert (mode(local), mode(local / "env"), mode(local / "token")) == ("700", "600", "600")
    first, token = (local / "env").read_text(), (local / "token").read_text()
    passwords = [line.partition("=")[2] for line in first.splitlines()]
    assert all(len(one) == 48 for one in passwords)
    assert len(set(passwords)) == len(passwords) == 5
    # the data has the passwords, so they stay; the token is new every time
    make(clone, "up")
    assert (local / "env").read_text() == first
    make(clone, "down", "DATA=delete")
    assert not local.exists()
    make(clone, "up", "RUNNERS=3")
    assert not set(passwords) & {line.partition("=")[2] for line in (local / "env").read_text().splitlines()}
    assert token.startswith("vtr_token-")


def test_the_make_targets_call_compose(clone: Path) -> None:
    assert make(clone, "up", "RUNNERS=3") == [
        "build",
        "run --rm -T etl_token",
        "up --detach --scale etl_runner=3",
    ]
    assert make(clone, "migrate-db") == ["run --rm --build etl_migrate"]
    assert make(clone, "logs", "SERVICE=etl_runner") == ["logs --follow --tail 100 etl_runner"]
    assert make(clone, "down") == ["--profile token down --remove-orphans"]
    assert make(clone, "down", "DATA=delete") == ["--profile token down --remove-orphans --volumes"]


def test_without_docker_make_up_says_what_is_missing(clone: Path) -> None:
    (clone.parent / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    env = {**os.environ, "PATH": f"{clone.parent}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["make", "up"], cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "this needs Docker with its plugin compose; without Docker, use make serve" in done.stderr


class Machine:
    """Runs services of the compose file as processes of this machine."""

    def __init__(self, folder: Path, server: EmbeddedPostgres, search: str) -> None:
        self.folder = folder
        self.ports = {"api": free_port(), "metrics": free_port()}
        subprocess.run([folder / "infra" / "new-secrets.sh"], check=True)
        lines = (folder / "infra" / "local" / "env").read_text().splitlines()
        self._values = dict(line.split("=", 1) for line in lines)
        self._server = server
        self._search = search

    def environment(self, service: Service) -> dict[str, str]:
        """The variables of the service, with the addresses of this machine: only loopback is listened on."""
        places = {
            "etl_db:5432": f"127.0.0.1:{self._server.port}",
            "http://elasticsearch:9200": self._search,
            "/tls/": f"{self.folder}/infra/local/",
        }
        given = service.environment(self._values)
        for old, new in places.items():
            given = {name: value.replace(old, new) for name, value in given.items()}
        here = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self._server.port),
            "VITRINE_API_HOST": "127.0.0.1",
            "VITRINE_METRICS_HOST": "127.0.0.1",
            "VITRINE_API_PORT": str(self.ports["api"]),
            "VITRINE_METRICS_PORT": str(self.ports["metrics"]),
        }
        return environment(None, **(given | {name: here[name] for name in here if name in given or name == "PGPORT"}))

    def run(self, name: str) -> str:
        """Run a one-shot service to its end; its standard output."""
        service = SERVICES[name]
        assert service.is_one_shot
        program, *arguments = service.command
        for inside, outside in service.mounts.items():
            arguments = [one.replace(inside, str(outside)) for one in arguments]
        env = self.environment(service)
        programs = {"vitrine": f"{sys.prefix}/bin/vitrine", "psql": psql.find(), "sh": "sh"}
        env["PATH"] = f"{sys.prefix}/bin:{env['PATH']}"
        done = subprocess.run(
            [programs[program], *arguments], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_healthy(self, *address: str, tls: bool = True) -> bool:
        env = environment(None, VITRINE_API_PORT=str(self.ports["api"]))
        if tls:
            env["VITRINE_TLS_CERT"] = "given"
        return subprocess.run([sys.executable, HEALTH, *address], env=env, capture_output=True).returncode == 0


@pytest.fixture
def machine(tmp_path: Path, elasticsearch_url: str) -> Iterator[Machine]:
    """A server of its own, because roles belong to a whole server."""
    shutil.copytree(ROOT / "infra", tmp_path / "infra", ignore=shutil.ignore_patterns("local"))
    with server_folder("vitrine-up-") as folder, EmbeddedPostgres(folder, port=free_port(), fast=True) as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute("CREATE ROLE cinema LOGIN SUPERUSER")
            admin.execute(sql.SQL("CREATE DATABASE cinema OWNER cinema"))
        yield Machine(tmp_path, server, elasticsearch_url)


@pytest.mark.promise("K17")
def test_the_services_work_in_their_order(machine: Machine, tmp_path: Path) -> None:
    for name in ("etl_sample", "etl_migrate", "etl_accounts", "etl_pipelines"):
        machine.run(name)
    old, token = (machine.run("etl_token").strip() for _ in range(2))
    local = tmp_path / "infra" / "local"
    with ExitStack() as processes:
        for name in ("etl_api", "etl_runner"):
            service = SERVICES[name]
            processes.enter_context(started(service.command[1:], tmp_path, machine.environment(service)))
        wait_until(machine.is_healthy, 30, "the API is healthy")
        wait_until(
            lambda: machine.is_healthy(f"http://127.0.0.1:{machine.ports['metrics']}/live"), 30, "the runner is healthy"
        )
        api = f"https://localhost:{machine.ports['api']}"
        trust = ssl.create_default_context(cafile=str(local / "tls.crt"))
        with httpx2.Client(base_url=api, verify=trust, trust_env=False) as client:
            assert client.get("/pipelines").status_code == 401
            assert client.get("/pipelines", headers={"Authorization": f"Bearer {old}"}).status_code == 401
            client.headers["Authorization"] = f"Bearer {token}"
            request = client.post("/pipelines/genre_dim_full/run").json()["request_id"]
            ended = client.get(f"/requests/{request}", params={"wait": "30s"}, timeout=60).json()
            assert (ended["state"], ended["run"]["rows_read"]) == ("succeeded", 26)
            # the account of the API reads the mart for this, as for the trace and the plan of the console
            compared = client.get("/pipelines/genre_dim_full/reconcile", timeout=60)
            assert (compared.status_code, compared.json().get("equal")) == (200, True), compared.text
        (tmp_path / "token").write_text(token)
        env = environment(None, VITRINE_API_URL=api, SSL_CERT_FILE=str(local / "tls.crt"))
        listed = vitrine("--token-file", "token", "list", folder=tmp_path, env=env)
        assert (listed.returncode, "genre_dim_full" in listed.stdout) == (0, True), listed.stderr
    assert not machine.is_healthy()
    # after the runner has ended: it would build the indexes, whose names other tests use on the same cluster
    assert "movies: created" in machine.run("etl_search_pipelines")
    # `make up` runs all of them again
    for name in ("etl_sample", "etl_migrate", "etl_accounts", "etl_pipelines"):
        machine.run(name)
