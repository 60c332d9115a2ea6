"""The benchmark's own arithmetic: medians, ratios, verdicts, the table and the JSON."""

import json
from io import StringIO

import pytest
from rich.console import Console

from bench import __main__ as command
from bench import latency, report
from bench.measuring import Result, Samples, Verdict, judge, ratio_of, turns


def test_the_median_of_the_rounds_counts_and_the_spread_is_told() -> None:
    samples = Samples((2.0, 9.0, 1.5))
    assert samples.median == 2.0
    assert str(samples) == "2.00 (1.50–9.00)"


def test_short_times_are_told_in_milliseconds() -> None:
    assert str(Samples((0.0714,))) == "0.071"


def test_one_disturbed_round_does_not_decide_the_ratio() -> None:
    assert ratio_of(Samples((3.0, 3.0, 30.0)), Samples((2.0, 2.0, 2.0))) == 1.5


@pytest.mark.parametrize(
    ("ratio", "right", "verdict"),
    [(1.4, True, Verdict.MET), (1.41, True, Verdict.MISSED), (0.5, False, Verdict.WRONG)],
)
def test_a_bar_is_met_missed_or_worth_nothing(ratio: float, right: bool, verdict: Verdict) -> None:
    assert judge(ratio, 1.4, right=right) is verdict


def test_each_contestant_goes_first_in_every_other_round() -> None:
    assert list(turns(3)) == [(0, True), (1, False), (2, True)]


def test_a_small_change_is_judged_only_beside_a_peer() -> None:
    mine = Samples((0.07, 0.08, 0.09))
    assert latency.judged(mine, None, right=True).verdict is Verdict.OPEN
    assert latency.judged(mine, Samples((0.4,)), right=True).verdict is Verdict.MET
    assert latency.judged(mine, Samples((0.2,)), right=True).verdict is Verdict.MISSED
    assert latency.judged(mine, Samples((0.4,)), right=False).verdict is Verdict.WRONG


RESULT = Result("F1", "first load", "≤ 1.4", Verdict.MET, Samples((2.0,)), Samples((2.6,)), 1.3, facts={"rows": 5})


def test_the_table_shows_seconds_ratio_bar_and_verdict() -> None:
    out = StringIO()
    Console(file=out, width=120).print(report.table([RESULT, Result("T2", "frames", "≤ 2.5", Verdict.ABSENT)]))
    shown = out.getvalue()
    assert all(part in shown for part in ("F1", "first load", "2.00", "2.60", "1.30", "≤ 1.4", "met", "not there yet"))


def test_the_document_keeps_every_round_and_the_machine() -> None:
    document = json.loads(json.dumps(report.document([RESULT], {"cores": 2})))
    assert document["machine"] == {"cores": 2}
    assert document["results"][0]["ours"] == {"median": 2.6, "seconds": [2.6]}
    assert document["results"][0]["facts"] == {"rows": 5}


def test_rows_are_chosen_by_name_and_the_second_run_brings_the_first() -> None:
    assert list(command.chosen("f1, m2", peers=False)) == ["F1", "M1"]
    assert "S1" in command.chosen("", peers=False)
    assert "S1" not in command.chosen("", peers=True)  # measured beside the peer
    assert not command.chosen("P1", peers=True)
