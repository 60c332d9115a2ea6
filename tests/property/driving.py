"""Runs a state machine: the same steps in every test run, or with VITRINE_TEST_STEPS more and other ones."""

import os
import secrets
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.conftest import SEEDS, STEPS

STEPS_OF_AN_EXAMPLE = 30
ROUNDS = 5
"""A long run is divided into about as many rounds, each with a seed of its own, which is reported."""


def drive(name: str, machine: Any, *, steps: int, always_the_same: bool = False) -> None:
    """`steps` of the machine; VITRINE_TEST_STEPS asks for more, VITRINE_TEST_SEED repeats a round.

    A machine that must find a fault takes always the same steps: those of a short round may miss it.
    Examples end early, for example when a pipeline is refused: rounds follow until the machine has taken the steps.
    """
    longer, given = os.environ.get("VITRINE_TEST_STEPS"), os.environ.get("VITRINE_TEST_SEED")
    if not longer or always_the_same:
        _drive(machine, crc32(name.encode()), steps, phases=(Phase.generate,))  # shrinking takes minutes
        return
    if given:
        _round(name, machine, int(given), int(longer))
        return
    wanted = STEPS.total() + int(longer)
    while STEPS.total() < wanted:
        _round(name, machine, secrets.randbits(32), int(longer))


def _round(name: str, machine: Any, number: int, longer: int) -> None:
    SEEDS.append(f"{name} {number}")
    try:
        _drive(machine, number, longer // ROUNDS, phases=(Phase.generate, Phase.shrink))
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
