"""Examines an API: whether it answers, accepts the token, and has a database and a runner."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from vitrine.cli.backends.http import Client
from vitrine.cli.backends.remote import RemoteDefinitions
from vitrine.errors import VitrineError
from vitrine.plugins import Diagnosis
from vitrine.service.bodies.doctor import DoctorReport, of_definitions
from vitrine.service.bodies.filters import EVERY
from vitrine.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def examine(settings: Settings) -> DoctorReport:
    return DoctorReport.of(list(_diagnoses(settings)))


def _diagnoses(settings: Settings) -> Iterator[Diagnosis]:
    url = settings.api_url or ""
    token = settings.token.get_secret_value() if settings.token else None
    with Client(url, token) as client:
        try:
            client.get_text("/health/live")
        except VitrineError as exc:
            yield Diagnosis("API", "error", str(exc), "check --api or VITRINE_API_URL")
            return
        yield Diagnosis("API", "ok", f"{url} answers")
        try:
            invalid = [one for page in RemoteDefinitions(client).pages(EVERY) for one in page.invalid]
        except VitrineError as exc:
            yield Diagnosis("token", "error", str(exc), "set VITRINE_TOKEN, or give --token-file")
        else:
            yield _of_token(url, token)
            yield from of_definitions((one.name, one.reason) for one in invalid)
        try:
            client.get_text("/health")
            yield Diagnosis("health", "ok", "the database answers, and a runner is active")
        except VitrineError as exc:
            yield Diagnosis("health", "error", str(exc), "run `vitrine doctor` on the machine of the API")


def _of_token(url: str, token: str | None) -> Diagnosis:
    parts = urlsplit(url)
    if token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        return Diagnosis("token", "warning", "it is sent without encryption", "use an https:// address")
    return Diagnosis("token", "ok", "pipelines can be read" if token else "none is given, and none is needed to read")
