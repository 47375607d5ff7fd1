"""Who trains on from saved weights with another learning rate began something new; who goes on has the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.events import Loading
from distdoctor.recording.trace.state_file import LR
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot


def told(first: float, saved: float, now: float, *, resumes: bool = False) -> list[str]:
    """Titles for a run that begins with the weights of an earlier one, and without its optimizer's state."""
    weights = {"head.weight": "b"}
    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}, numbers={f"{LR} 1": first}),
        snapshot("save", run="one", step=20, weights=weights, moments={"head.weight": "m"}, numbers={f"{LR} 1": saved}),
    )
    start = snapshot("start", run="two", weights=weights, numbers={f"{LR} 1": now}, resumes=resumes)
    recording = replace(trained_job(1).initial().step().recording(), states=(start,), earlier_states=earlier)
    return [f"{one.confidence}: {one.title}" for one in PLUGINS.checks["DD706"].look(recording)]


LOST = "resumed from step 20 without restoring the optimizer's state"


def test_another_fixed_learning_rate_is_another_training() -> None:
    assert told(1e-3, 1e-3, 2e-4) == []


@pytest.mark.parametrize("rates", [(1e-3, 1e-3, 1e-3), (1e-3, 5e-4, 4e-4)], ids=["the same", "one that moves"])
def test_a_run_that_may_go_on_is_told(rates: tuple[float, float, float]) -> None:
    (title,) = told(*rates)

    assert title.startswith("possible")
    assert LOST in title


def test_a_run_that_says_it_resumes_is_told_whatever_its_learning_rate() -> None:
    (title,) = told(1e-3, 1e-3, 2e-4, resumes=True)

    assert title.startswith("likely")
    assert LOST in title


@pytest.mark.parametrize(
    ("head", "resumes", "found"), [("class", False, []), ("class", True, [1]), ("turn", False, [1])]
)
def test_a_model_with_another_head_is_another_training(head: str, resumes: bool, found: list[int]) -> None:
    first = {"body.weight": "a", "heads.turn.weight": "a"}
    saved = {"body.weight": "b", "heads.turn.weight": "c"}
    earlier = (
        snapshot("start", run="one", weights=first),
        snapshot("save", run="one", step=20, weights=saved, moments=dict.fromkeys(saved, "m")),
    )
    start = snapshot("start", run="two", weights={"body.weight": "b", f"heads.{head}.weight": "a"}, resumes=resumes)
    recording = replace(trained_job(1).initial().step().recording(), states=(start,), earlier_states=earlier)

    assert [1 for _ in PLUGINS.checks["DD706"].look(recording)] == found


@pytest.mark.parametrize("resumes", [False, True])
def test_a_stage_that_begins_with_the_average_of_the_one_before_is_another_training(resumes: bool) -> None:
    """A part of the weights is that of the copy, the others are new; what was trained is nowhere."""
    earlier = (
        snapshot(
            "start", run="one", weights={"body.weight": "a", "head.weight": "a"}, copies={"Net 1: body.weight": "a"}
        ),
        snapshot(
            "save",
            run="one",
            step=20,
            paths=["/job/average.pt"],
            weights={"body.weight": "b", "head.weight": "c"},
            moments={"body.weight": "m"},
            copies={"Net 1: body.weight": "d", "Net 1: head.weight": "e"},
        ),
    )
    weights = {"body.weight": "d", "head.weight": "n"}
    copies = {f"Net 1: {name}": digest for name, digest in weights.items()}  # made of these weights
    start = snapshot("start", run="two", weights=weights, copies=copies, resumes=resumes)
    job = trained_job(1).initial().note(Loading("/job/average.pt", "torch.load"), site="train.py:41 main").step()
    recording = replace(job.recording(), states=(start,), earlier_states=earlier)

    assert bool(PLUGINS.checks["DD706"].look(recording)) is resumes
