"""Traces of single keys, and their resend as a run."""

from tests.helpers.running import run
from vitrine.cli.backends.local import local_context
from vitrine.flow import keys
from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.requests import RequestKind, RunOptions
from vitrine.runner.executor import Executed
from vitrine.service import tracing
from vitrine.service.bodies.tracing import TraceBody
from vitrine.settings import Settings


def trace(settings: Settings, pipeline: Pipeline, *key: str) -> TraceBody:
    return tracing.trace(local_context(settings), pipeline.name, key)


def resend(connection: Connection, settings: Settings, pipeline: Pipeline, *key: str, delete: bool = False) -> Executed:
    options = RunOptions(key=keys.to_text(key), delete=delete)
    return run(connection, settings, pipeline, kind=RequestKind.RESEND, options=options)


def differing(found: TraceBody) -> list[str]:
    return [column.name for column in found.columns if column.differs]
