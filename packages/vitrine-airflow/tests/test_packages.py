"""What `.venv-airflow` has: pinned packages under known licences, and the provider as Airflow sees it."""

import json
import subprocess
from importlib import metadata
from pathlib import Path

from airflow_processes import BIN
from tests.licenses import ROOT, Package, is_allowed, licence_of, pins

EXCEPTIONS = {"text-unidecode"}
"""Under the Artistic License: needed by Airflow itself, and not distributed with the provider."""

SITE_PACKAGES = next((BIN.parent / "lib").glob("python*/site-packages"))


def test_every_licence_is_allowed() -> None:
    installed = {one.name.lower().replace("_", "-"): one for one in metadata.distributions(path=[str(SITE_PACKAGES)])}
    found = [
        Package(name, version, licence_of(installed[name].metadata), "tests of the Airflow provider")
        for name, version in pins(ROOT / "requirements" / "airflow.txt")
        if name in installed and name not in EXCEPTIONS
    ]
    assert len(found) > 50
    assert [one for one in found if not is_allowed(one)] == []


def test_airflow_knows_the_provider_and_its_connection_type(tmp_path: Path) -> None:
    command = [str(BIN / "airflow"), "providers", "hooks", "--output", "json"]
    env = {"AIRFLOW_HOME": str(tmp_path), "PATH": str(BIN)}
    listed = json.loads(subprocess.run(command, env=env, capture_output=True, check=True, text=True).stdout)
    (ours,) = [one for one in listed if one["connection_type"] == "vitrine"]
    assert ours["package_name"] == "vitrine-airflow"
