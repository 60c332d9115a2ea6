"""What Airflow reads about this provider."""

from importlib.metadata import version
from typing import Any

PACKAGE = "vitrine-airflow"
NAME = "Vitrine"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": PACKAGE,
        "name": NAME,
        "description": "Runs Vitrine pipelines, waits for fresh marts, compares marts with their sources.",
        "versions": [version(PACKAGE)],
        "integrations": [{"integration-name": NAME, "tags": ["service"]}],
        "hooks": [_modules("hook")],
        "operators": [_modules("operators")],
        "sensors": [_modules("sensors")],
        "triggers": [_modules("triggers")],
        "connection-types": [
            {
                "connection-type": "vitrine",
                "hook-class-name": "vitrine_airflow.hook.VitrineHook",
                "hook-name": NAME,
                "ui-field-behaviour": {
                    "hidden-fields": ["login", "extra"],
                    "relabeling": {"schema": "http or https", "password": "Access token"},
                    "placeholders": {"host": "vitrine.example.com", "port": "443", "schema": "https"},
                },
                "conn-fields": {
                    "ca_file": _field(
                        "CA file",
                        "Certificates of the authority that signed the API's; empty: those that the system trusts.",
                        "string",
                    ),
                    "timeout": _field("Timeout", "Seconds to wait for an answer; empty: 30.", "number"),
                    "retry_for": _field(
                        "Retry for", "Seconds for which a call without an answer is repeated; empty: 300.", "number"
                    ),
                },
            }
        ],
    }


def _modules(name: str) -> dict[str, Any]:
    return {"integration-name": NAME, "python-modules": [f"vitrine_airflow.{name}"]}


def _field(label: str, description: str, kind: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": [kind, "null"]}}
