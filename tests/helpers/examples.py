"""Hypothesis settings for tests that need a round trip to the database per example."""

import os

from hypothesis import HealthCheck, Phase
from hypothesis import settings as settings_of

EXAMPLES = 5


def round_trips(examples: int = EXAMPLES) -> settings_of:
    """The same few examples in every run; with VITRINE_TEST_STEPS set, more and other ones."""
    longer = os.environ.get("VITRINE_TEST_STEPS")
    return settings_of(
        max_examples=examples * 20 if longer else examples,
        deadline=None,
        derandomize=not longer,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),  # the failure names column and value; shrinking takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
