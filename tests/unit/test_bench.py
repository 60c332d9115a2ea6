"""The arithmetic of the benchmarks: medians, ratios, intervals, verdicts, the tables and the JSON."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from bench import __main__ as command
from bench import latency, report
from bench.comparison import report as comparison_report
from bench.comparison.compare import Comparison, Side
from bench.comparison.interval import Interval, Outcome, interval_of_median, paired_ratios
from bench.comparison.interval import judge as judge_interval
from bench.comparison.rounds import measure_in_rounds
from bench.measuring import Result, Samples, Verdict, judge, ratio_of, turns
from bench.page_clients import Page
from bench.tree import CommandFailed, Measurement, Tree, warm_up_of


def test_samples_show_the_median_and_the_range() -> None:
    samples = Samples((2.0, 9.0, 1.5))
    assert samples.median == 2.0
    assert str(samples) == "2.00 (1.50–9.00)"


def test_times_below_a_second_have_three_decimals() -> None:
    assert str(Samples((0.0714,))) == "0.071"


def test_one_disturbed_round_does_not_decide_the_ratio() -> None:
    assert ratio_of(Samples((3.0, 3.0, 30.0)), Samples((2.0, 2.0, 2.0))) == 1.5


@pytest.mark.parametrize(
    ("ratio", "right", "verdict"),
    [(1.4, True, Verdict.MET), (1.41, True, Verdict.MISSED), (0.5, False, Verdict.WRONG)],
)
def test_a_bar_is_met_or_missed_unless_the_target_is_wrong(ratio: float, right: bool, verdict: Verdict) -> None:
    assert judge(ratio <= 1.4, right=right) is verdict


def test_each_side_starts_every_other_round() -> None:
    assert list(turns(3)) == [(0, True), (1, False), (2, True)]


def test_a_small_change_is_judged_only_beside_a_peer() -> None:
    mine = Samples((0.07, 0.08, 0.09))
    assert latency.judged(mine, None, right=True).verdict is Verdict.OPEN
    assert latency.judged(mine, Samples((0.4,)), right=True).verdict is Verdict.MET
    assert latency.judged(mine, Samples((0.2,)), right=True).verdict is Verdict.MISSED
    assert latency.judged(mine, Samples((0.4,)), right=False).verdict is Verdict.WRONG
    assert latency.judged(mine, None, right=False).verdict is Verdict.WRONG


RESULT = Result("F1", "first load", "≤ 1.4", Verdict.MET, Samples((2.0,)), Samples((2.6,)), 1.3, facts={"rows": 5})


def test_the_table_shows_seconds_ratio_bar_and_verdict() -> None:
    shown = _printed(report.table([RESULT, Result("T2", "frames", "≤ 2.5", Verdict.ABSENT)]))
    assert all(part in shown for part in ("F1", "first load", "2.00", "2.60", "1.30", "≤ 1.4", "met", "not installed"))


def test_the_document_keeps_every_round_and_the_machine() -> None:
    document = json.loads(json.dumps(report.document([RESULT], {"cores": 2})))
    assert document["machine"] == {"cores": 2}
    assert document["results"][0]["ours"] == {"median": 2.6, "seconds": [2.6]}
    assert document["results"][0]["facts"] == {"rows": 5}


def test_rows_are_chosen_by_name_and_m2_includes_m1() -> None:
    assert list(command.chosen("f1, m2", peers=False)) == ["F1", "M1"]
    assert list(command.chosen("c1,C2", peers=False)) == ["C1", "C2"]
    assert "S1" in command.chosen("", peers=False)
    assert "S1" not in command.chosen("", peers=True)  # measured beside the peer
    assert not command.chosen("P1", peers=True)
    assert command.chosen_peers("p2") == ["P2"]
    assert command.chosen_peers("F1") == ["P1", "P2"]


def test_the_trees_start_in_turns_and_the_warm_up_round_is_not_counted() -> None:
    order: list[str] = []

    def measure(tree: str) -> Measurement:
        order.append(tree)
        return Measurement(float(len(order)))

    measured = measure_in_rounds(3, measure)
    assert order == ["old", "new", "new", "old", "old", "new", "new", "old"]
    assert [one.seconds for one in measured["old"]] == [4.0, 5.0, 8.0]
    assert [one.seconds for one in measured["new"]] == [3.0, 6.0, 7.0]


def test_a_load_on_the_machine_that_lasts_for_a_round_cancels_out() -> None:
    assert paired_ratios([1.0, 5.0, 2.0], [1.5, 7.5, 3.0]) == [1.5, 1.5, 1.5]


def test_with_nine_rounds_the_interval_leaves_out_the_smallest_and_the_largest_ratio() -> None:
    ratios = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 9.0]
    assert interval_of_median(ratios) == Interval(1.1, 1.7)
    assert interval_of_median(ratios[::-1]) == Interval(1.1, 1.7)


def test_with_three_rounds_the_interval_is_the_range() -> None:
    assert interval_of_median([1.2, 0.9, 1.0]) == Interval(0.9, 1.2)


def test_equal_ratios_have_an_interval_without_width() -> None:
    assert interval_of_median([1.2] * 9) == Interval(1.2, 1.2)


@pytest.mark.parametrize(
    ("interval", "right", "outcome"),
    [
        (Interval(1.11, 1.30), True, Outcome.FAILED),
        (Interval(1.10, 1.30), True, Outcome.PASSED),
        (Interval(1.05, 1.30), True, Outcome.PASSED),
        (Interval(0.80, 0.90), True, Outcome.PASSED),
        (Interval(0.80, 0.90), False, Outcome.WRONG),
    ],
)
def test_a_row_fails_when_its_interval_lies_wholly_above_the_limit(
    interval: Interval, right: bool, outcome: Outcome
) -> None:
    assert judge_interval(interval, right=right) is outcome


def _side(*seconds: float, peak_mb: float | None = 80.0) -> Side:
    return Side(tuple(Measurement(one, peak_mb) for one in seconds))


PASSED = Comparison("F1", "load", Outcome.PASSED, _side(2.0, 2.0), _side(2.0, 2.2), 1.05, Interval(1.0, 1.1))
SLOWER = Comparison("T1", "rows", Outcome.FAILED, _side(2.0, 2.0), _side(2.6, 2.8), 1.35, Interval(1.3, 1.4))
WRONG = Comparison("F2", "refresh", Outcome.WRONG, _side(2.0), _side(2.0), 1.0, Interval(1.0, 1.0))
BROKEN = Comparison("S1", "start", Outcome.BROKEN, reason="`vitrine run s1` ended with 1: no such option")


@pytest.mark.parametrize(
    ("comparisons", "succeeded"),
    [([PASSED], True), ([PASSED, SLOWER], False), ([WRONG], False), ([BROKEN], False)],
)
def test_a_comparison_succeeds_only_when_every_row_passes(comparisons: Sequence[Comparison], succeeded: bool) -> None:
    assert comparison_report.succeeded(comparisons) is succeeded


def test_each_row_has_a_verdict_line_and_few_rounds_a_warning() -> None:
    lines = comparison_report.verdicts([PASSED, SLOWER, WRONG, BROKEN], rounds=2)
    assert lines[0].startswith("F1 passes: new : old = 1.05, interval 1.00–1.10")
    assert lines[1].startswith("T1 FAILS: new : old = 1.35, interval 1.30–1.40 wholly above 1.10")
    assert lines[2].startswith("F2 is WRONG")
    assert lines[3].startswith("S1 is BROKEN: `vitrine run s1`")
    assert "at least 9" in lines[4]
    assert len(comparison_report.verdicts([PASSED], rounds=9)) == 1


def test_the_comparison_shows_medians_interval_and_peak_memory() -> None:
    shown = _printed(comparison_report.table([SLOWER, BROKEN]))
    assert all(part in shown for part in ("T1", "2.00", "2.70", "1.35", "1.30–1.40", "80", "S1"))


def test_the_comparison_document_keeps_the_ratio_of_every_round() -> None:
    document = json.loads(json.dumps(comparison_report.document([SLOWER, BROKEN], {"old": "abc"})))
    assert document["machine"] == {"old": "abc"}
    assert document["comparisons"][0]["ratios"] == [1.3, 1.4]
    assert document["comparisons"][0]["old"]["peak_mb"] == [80.0, 80.0]
    assert document["comparisons"][1]["outcome"] == "is BROKEN"


def test_rows_of_the_comparison_are_chosen_by_name_and_scaled() -> None:
    assert [row.name for row in command.chosen_rows("t1,f1", 1.0)] == ["F1", "T1"]
    assert "1,000,000" in command.chosen_rows("F1", 1.0)[0].workload
    assert "1,000 " in command.chosen_rows("F1", 0.001)[0].workload
    with pytest.raises(typer.BadParameter, match="unknown row G1"):
        command.chosen_rows("G1", 1.0)


def test_a_warm_up_pipeline_is_of_the_same_kind_as_the_measured_one() -> None:
    full = warm_up_of({"name": "t1", "target_table": "analytics.t1", "python_task": "bench_raise_score"})
    assert (full["name"], full["target_table"]) == ("t1_warm_up", "analytics.t1_warm_up")
    assert full["python_task"] == "bench_raise_score"
    assert "mode" not in full
    increment = warm_up_of(
        {"name": "i1", "target_table": "analytics.i1", "mode": "incremental", "incremental_key": "modified"}
    )
    assert (increment["mode"], increment["incremental_key"]) == ("incremental", "modified")


def test_a_tree_without_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="has no environment: run `make check` there first"):
        Tree.at("old", tmp_path)


def test_a_tree_whose_environment_belongs_to_another_tree_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.tree.WORK", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho /elsewhere/src/vitrine/__init__.py\n", encoding="ascii")
    python.chmod(0o755)
    with pytest.raises(CommandFailed, match="imports vitrine from /elsewhere/src/vitrine"):
        Tree.at("old", tmp_path)


def _printed(table: object) -> str:
    out = StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def message(page: Page, name: str, data: dict[str, object]) -> None:
    page.apply(name, {"_id": 1, **data})


def counters(figure: str) -> dict[str, Any]:
    return {"tag": "x", "props": {"counters": [{"state": "failed", "figure": figure}]}}


def test_a_page_without_a_browser_shows_what_it_is_sent() -> None:
    page = Page("http://127.0.0.1:1")
    rows = [{"name": "a", "late": False}, {"name": "b"}]
    table: dict[str, Any] = {"tag": "x", "props": {"outcomes": {}, "rows": rows}}
    message(page, "update", {"5": counters("2"), "6": table, "8": {"tag": "span", "text": "All"}, "9": {}})
    message(page, "update", {"9": None, "5": counters("3")})
    message(page, "run_javascript", {"code": 'return runMethod(6, "patch", [[{"name": "a", "late": true}]])'})
    message(page, "run_javascript", {"code": 'return runMethod(3, "tick", [1.5])'})
    assert page.shown() == {"counters": {"failed": "3"}, "rows": [{"name": "a", "late": True}, {"name": "b"}]}
    assert "9" not in page.elements
