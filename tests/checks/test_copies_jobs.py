"""Copies of the model and scaled losses: each check on a real job that is ill, and on the healthy ones that look most like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import copies, loss_scale
from jobs.replicas import watched

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, WARNING, Finding, Severity
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on replicas say, but for notes."""
    diagnosis = examine(recording, [check for check in load().checks.values() if check.code.startswith("DD2")])
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return [one for one in diagnosis.findings if one.severity != NOTE]


ILL: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[int, ...], str]] = [
    (copies.taught, {"refreshes": (0,)}, "DD222", (1,), "# its answers"),
    (copies.evaluated, {"refreshes": (0,)}, "DD222", (1,), "# evaluates"),
    (copies.targeted, {"each": (2, 3)}, "DD222", (0, 1), "# bootstraps"),
    (copies.played_in_a_thread, {"each": (2, 3)}, "DD222", (0, 1), "if step % each[rank] == 0:"),
    (copies.by_names, {}, "DD222", (0, 1), "# of a head that does not play"),
    (copies.by_names, {"each": 4}, "DD222", (0, 1), "# of a head that does not play"),
    (copies.in_a_dictionary, {"each": (3, 4)}, "DD222", (0, 1), "# bootstraps from it"),
    (copies.in_a_dictionary, {"early": True}, "DD222", (1,), "# bootstraps from it"),
    (copies.averaged_by_name, {"of_the_wrapper": True}, "DD222", (0, 1), "# names that it has"),
    (copies.averaged_by_name, {"early": True}, "DD222", (1,), "# the averages"),
    (copies.sent_to_players, {}, "DD222", (0,), "# as they are now"),
    (copies.taken_early, {}, "DD222", (1,), "# before"),
    (copies.pushed, {}, "DD222", (0, 1), "# what it has"),
    (copies.taught_by_another, {}, "DD222", (0, 1), "# another aim"),
    (loss_scale.divided_by_ranks, {}, "DD209", (0, 1), "# divided"),
    (loss_scale.divided_by_ranks, {"times": True}, "DD209", (0, 1), "# times"),
    (loss_scale.windows, {}, "DD208", (0, 1), "# the window is over"),
    (loss_scale.token_means, {}, "DD208", (0, 1), "# each micro-step"),
    (loss_scale.windows, {"over": 4}, "DD208", (0, 1), "/ size).backward()"),
    (loss_scale.windows, {"at_the_end": "zero first"}, "DD208", (0, 1), "# a window begins"),
]


@pytest.mark.parametrize(
    ("job", "about", "code", "ranks", "words"), ILL, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(ILL)]
)
def test_an_illness_is_named_with_its_ranks_and_line(
    job: Callable[..., Any], about: dict[str, Any], code: str, ranks: tuple[int, ...], words: str
) -> None:
    recording, _ = watched(job, **about)

    findings = found(recording)

    assert [(one.code, one.ranks) for one in findings] == [(code, ranks)], [one.title for one in findings]
    (finding,) = findings
    assert (finding.severity, finding.confidence) == (WARNING, LIKELY)
    assert words in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (copies.in_a_dictionary, {}),
    (copies.in_a_dictionary, {"early": False}),
    (copies.in_a_dictionary, {"noise": (0.01, 0.01)}),
    (copies.in_a_dictionary, {"noise": (0, 0.01)}),
    (copies.in_a_dictionary, {"noise": (0, 0.01), "anew": 4}),
    (copies.sent_to_players, {"anew": True, "constants": True}),
    (copies.averaged_by_name, {}),
    (copies.averaged_by_name, {"each": (2, 2), "beside": True}),
    (copies.taught, {}),
    (copies.taught, {"refreshes": (0,), "learns": False}),  # rank 0 keeps the average that is saved
    (copies.evaluated, {}),
    (copies.evaluated, {"refreshes": (0,), "gives": True}),
    (copies.targeted, {}),
    (copies.by_names, {"of_the_wrapper": False}),
    (copies.by_names, {"of_the_wrapper": False, "each": 4}),
    (copies.never_taken, {}),
    (copies.played_in_a_thread, {}),
    (copies.taken_early, {"after_wrapping": True}),
    (copies.pushed, {"renewed": True, "each": 2}),
    (copies.pushed, {"each": 100}),  # a reference that stays what it was
    (copies.under_one_roof, {}),
    (copies.taught_by_another, {"alike": True}),
    (copies.taught_by_another, {"begins_late": True}),
    (copies.evaluated_between, {"trains_again": True}),
    (copies.frozen_layers, {}),
    (copies.beside_odd_modules, {}),
    (copies.actor_and_critic, {}),
    (copies.one_of_two, {}),
    (loss_scale.halved, {}),
    (loss_scale.token_means, {"divided_by": "4"}),
    (loss_scale.token_means, {"divided_by": "window"}),
    (loss_scale.token_means, {"divided_by": "window", "alike": True}),
    (loss_scale.token_means, {"divided_by": "all", "micro_steps": 3}),
    (loss_scale.averaged_in_hooks, {}),
    (loss_scale.averaged_in_hooks, {"early": True}),
    (loss_scale.windows, {"at_the_end": "step"}),
    (loss_scale.windows, {"at_the_end": "zero"}),
    (loss_scale.windows, {"over": 2, "parts": 2}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_a_healthy_twin_is_silent_and_trains_the_same_to_the_last_bit(
    job: Callable[..., Any], about: dict[str, Any]
) -> None:
    recording, looked_at = watched(job, **about)
    _, left_alone = watched(job, streams="collectives", **about)

    assert [(one.code, one.title, one.why) for one in found(recording)] == []
    assert looked_at == left_alone


@pytest.mark.parametrize(("by", "severity"), [((0,), ERROR), ((0, 1), WARNING)])
def test_training_that_goes_on_in_eval_mode_is_told(by: tuple[int, ...], severity: Severity) -> None:
    recording, _ = watched(copies.evaluated_between, by=by)
    (finding,) = found(recording)

    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD223", by, severity, LIKELY)
    assert "# for a look" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize("by_one", [False, True])
def test_networks_whose_gradients_travel_in_one_piece_are_replicas_whose_buffers_are_compared(by_one: bool) -> None:
    recording, _ = watched(copies.actor_and_critic, apart=True, by_one=by_one)
    diagnosis = examine(recording, [check for check in load().checks.values() if check.code == "DD204"])

    names = {name for one in diagnosis.findings for name in one.evidence["buffers"]}
    assert names >= ({"actor.norm.running_mean", "critic.norm.running_mean"} if by_one else {"norm.running_mean"})
