"""Runs a state machine: the same steps in every test run, or with VITRINE_TEST_STEPS more and other ones."""

import os
import secrets
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.conftest import SEEDS

STEPS_OF_AN_EXAMPLE = 30
ROUNDS = 5
"""A long run is divided into as many rounds, each with a seed of its own, which is reported."""


def drive(name: str, machine: Any, *, steps: int) -> None:
    """`steps` of the machine; VITRINE_TEST_STEPS asks for more, VITRINE_TEST_SEED repeats a round."""
    longer, given = os.environ.get("VITRINE_TEST_STEPS"), os.environ.get("VITRINE_TEST_SEED")
    if not longer:
        _drive(machine, crc32(name.encode()), steps, phases=(Phase.generate,))  # shrinking takes minutes
        return
    rounds = [int(given)] if given else [secrets.randbits(32) for _ in range(ROUNDS)]
    for number in rounds:
        SEEDS.append(f"{name} {number}")
        try:
            _drive(machine, number, int(longer) // ROUNDS, phases=(Phase.generate, Phase.shrink))
        except BaseException as exc:
            exc.add_note(f"to repeat it: VITRINE_TEST_STEPS={longer} VITRINE_TEST_SEED={number}")
            raise


def _drive(machine: Any, number: int, steps: int, *, phases: tuple[Phase, ...]) -> None:
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=steps // STEPS_OF_AN_EXAMPLE + 1,
            stateful_step_count=STEPS_OF_AN_EXAMPLE,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
            phases=phases,
        ),
    )
