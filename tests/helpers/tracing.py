"""Traces of single keys, and their resend as a run."""

from tests.helpers.running import run
from vitrine.cli.backends.local import local_context
from vitrine.core import keys
from vitrine.core.status import RequestKind, RunOptions
from vitrine.definition.pipeline import Pipeline
from vitrine.operations import checks
from vitrine.operations.bodies.checks import TraceBody
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings


def trace(settings: Settings, pipeline: Pipeline, *key: str) -> TraceBody:
    return checks.trace(local_context(settings), pipeline.name, key)


def resend(connection: Connection, settings: Settings, pipeline: Pipeline, *key: str, delete: bool = False) -> Executed:
    options = RunOptions(key=keys.to_text(key), delete=delete)
    return run(connection, settings, pipeline, kind=RequestKind.RESEND, options=options)


def differing(found: TraceBody) -> list[str]:
    return [column.name for column in found.columns if column.differs]
