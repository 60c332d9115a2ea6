"""How many examples a property test runs."""

import os

from hypothesis import HealthCheck, Phase
from hypothesis import settings as settings_of

EXAMPLES = 5


def round_trips(examples: int = EXAMPLES) -> settings_of:
    longer = os.environ.get("VITRINE_TEST_STEPS")
    return settings_of(
        max_examples=examples * 20 if longer else examples,
        deadline=None,
        derandomize=not longer,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),  # a column and its values are told; to shrink takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
