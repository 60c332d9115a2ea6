"""Removes indexes of loads that are no longer under construction."""

import time

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.generations import StoredIndex, described_indexes, remove_load
from vitrine.connectors.elasticsearch.requests import Requests
from vitrine.errors import TransientError
from vitrine.flow.jobs import SweepJob

SWEEP_SECONDS = 5.0
"""A runner claims nothing while it sweeps: a cluster that does not answer must not stop it."""


class ShortLease:
    """For requests that belong to no run, and have little time."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SWEEP_SECONDS

    def seconds_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TransientError(f"the cluster took longer than {SWEEP_SECONDS:g} s")
        return left

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def sweep(job: SweepJob[ElasticsearchSettings]) -> list[str]:
    if job.settings.url is None:
        return []
    requests = Requests(job.settings, "es:*", ShortLease())
    try:
        staged = [one for one in described_indexes(requests, ["*__g*"]) if _is_own_load(one, job.installation)]
        in_use = {(str(pipeline), number) for pipeline, number in (job.open_loads() if staged else ())}
        leftover = [one for one in staged if one.mark and (one.mark.pipeline, one.mark.generation) not in in_use]
        return [one.name for one in leftover if remove_load(requests, one)]
    finally:
        requests.close()


def _is_own_load(index: StoredIndex, installation: str) -> bool:
    return index.mark is not None and index.mark.installation == installation and index.is_load
