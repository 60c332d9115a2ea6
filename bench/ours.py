"""Pipelines of the platform, run in this process from request to finished."""

import logging
import threading
from typing import Any

from bench.database import Database
from vitrine import revisions
from vitrine.model import Definition, Pipeline
from vitrine.runner.dispatcher import PipelineDispatcher
from vitrine.runner.executor import Executed, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import pipelines


def create(database: Database, settings: Settings, **fields: Any) -> Pipeline:
    return revisions.create(database.connection, settings, Definition.model_validate({"source": "cinema", **fields}))


def run(database: Database, settings: Settings, pipeline: Pipeline) -> Executed:
    """Request, claim, lease, heartbeat, plan, batches, publish, leave: all that a runner does for one run."""
    logging.getLogger("vitrine.runner.dispatcher").setLevel(logging.CRITICAL)
    pipelines.request_run(database.connection, pipeline.id, trigger="cli")
    claim = pipelines.claim_next(database.connection, runner="bench", ttl=settings.lease_ttl, only=pipeline.id)
    if claim is None:
        raise RuntimeError(f"'{pipeline.name}' cannot be claimed")
    dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event()))
    executed, _ = dispatcher.dispatch(claim, retry=False)
    if executed.error is not None:
        raise executed.error
    return executed


def reset(database: Database, settings: Settings, pipeline: Pipeline, target: str) -> None:
    """As if it had never run."""
    database.execute(f"DROP TABLE IF EXISTS {target}")
    revisions.change(database.connection, settings, pipeline.id, {}, state="reset")
