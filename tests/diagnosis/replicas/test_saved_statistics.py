"""Running statistics that differ between ranks: a note, until one rank saves its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, WARNING, Finding
from distdoctor.recording.trace.events import BesideUsed, SavedBeside, Saving
from distdoctor.recording.trace.layout import TensorFlag
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

NAME = "1.running_mean"


def finding(
    by: tuple[int, ...] = (0,),
    *,
    also: tuple[int, ...] = (),
    averaged: bool = False,
    kept: str = NAME,
    parameters: int = 2,
    beside: tuple[str, ...] | None = None,
) -> Finding:
    """Two ranks step twice with statistics of their own, then `by` save a checkpoint of four tensors of a model with so many
    `parameters` that holds `kept`, and `also` on another line one of their own. `beside`: names of what is in it and not trained.
    """
    job = trained_job(2, buffers={NAME: int(TensorFlag.BUFFER | TensorFlag.NORMALISATION)}).initial()
    for _ in range(2):
        job.collective("all_reduce", [64, 64], nbytes=16384).step(buffers={1: 1})
    job.collective("all_reduce", [32 if averaged else 1], nbytes=128 if averaged else 2)
    step = job.logs[0]._step
    job.note(Saving("/job/ck.pt", "torch.save", step, 2**40, 4), only=by, site="train.py:42 main")
    job.note(SavedBeside("/job/ck.pt", beside or (), many=beside is None), only=by)
    job.note(Saving("/job/own.pt", "torch.save", step, 2**40, 4), only=also, site="train.py:40 main")
    weights = {f"{number}.weight": "w" for number in range(parameters)}
    states = tuple(
        snapshot("save", run="one", rank=rank, step=step, paths=["/job/ck.pt"], buffers={kept: "b"}, weights=weights)
        for rank in {*by, *also}
    )
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD204"]
    (found,) = examine(replace(job.recording(), states=states), checks).findings
    return found


@pytest.mark.parametrize("names", [(f"module.{NAME}",), ("running_mean", "other")], ids=["wrapped", "a module within"])
def test_a_save_that_names_them_holds_them(names: tuple[str, ...]) -> None:
    assert finding(beside=names).severity == WARNING


@pytest.mark.parametrize("also", [(), (0, 1)], ids=["alone", "beside what each saves"])
def test_statistics_that_one_rank_saves_as_its_own_are_a_warning(also: tuple[int, ...]) -> None:
    found = finding(also=also)

    assert (found.severity, found.confidence) == (WARNING, LIKELY)
    assert found.title.endswith("and rank 0 saves its own")
    assert [place.ranks for place in found.places] == [(0, 1), (0,)]


@pytest.mark.parametrize(
    "about",
    [
        {"by": ()},
        {"by": (0, 1)},
        {"also": (1,)},
        {"averaged": True},
        {"kept": "other"},
        {"also": (0, 1), "parameters": 4},
        {"beside": ("query.running_var", "step")},
        {"beside": ()},
    ],
    ids=[
        "nobody saves",
        "each rank saves its own",
        "each on its line",
        "averaged before the save",
        "not in the checkpoint",
        "beside its parameters alone",
        "not among its names",
        "trained tensors alone",
    ],
)
def test_statistics_that_stay_each_ranks_own_are_a_note(about: dict[str, Any]) -> None:
    found = finding(**about)

    assert (found.severity, found.confidence) == (NOTE, CERTAIN)


@pytest.mark.parametrize(("by", "severity"), [((0,), WARNING), ((0, 1), NOTE)])
def test_what_one_rank_saves_into_memory_counts_as_well(by: tuple[int, ...], severity: int) -> None:
    job = trained_job(2, buffers={NAME: int(TensorFlag.BUFFER | TensorFlag.NORMALISATION)}).initial()
    for _ in range(2):
        job.collective("all_reduce", [64, 64], nbytes=16384).step(buffers={1: 1})
    step = job.logs[0]._step
    states = tuple(
        snapshot("save", run="one", rank=rank, step=step, site="train.py:42 main", buffers={NAME: "b"}) for rank in by
    )
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD204"]
    (found,) = examine(replace(job.recording(), states=states), checks).findings

    assert (found.severity, found.confidence) == (severity, POSSIBLE if severity == WARNING else CERTAIN)


SCALE = """class Scale(nn.Module):
    def __init__(self):
        self.register_buffer("mean", torch.zeros(4))

    def update(self, x):
        seen = x.mean(0)
        self.mean.lerp_(seen, 0.1)
"""


def beside(
    *steps: dict[int, int],
    by: tuple[int, ...] = (0,),
    used: tuple[int, ...] = (0, 1),
    source: str = SCALE,
    local: bool = False,
) -> list[tuple[str, int]]:
    """Severity and line of what is said of a module beside the model that held these versions in the steps, before `by` save."""
    job = trained_job(2, buffers={"Scale.mean": int(TensorFlag.BUFFER)}, beside=True).initial()
    for odd in steps:
        job.step(buffers=odd, **({"params": {1: 1}} if local else {}))
    job.note(BesideUsed("Scale", 1), only=used, site="train.py:30 train")
    job.note(Saving("/job/ck.pt", "torch.save", job.logs[0]._step, 2**40, 4), only=by, site="train.py:42 main")
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD204"]
    found = examine(job.recording(sources={"/job/train.py": source}), checks).findings
    return [(one.severity, one.place.line) for one in found]


APART = [{1: 1}] * 4


def test_statistics_beside_the_model_that_it_is_trained_on_are_told_with_what_makes_them() -> None:
    assert beside(*APART) == [(WARNING, 6)]
    assert beside(*APART, by=()) == [(NOTE, 6)]
    assert beside(*APART, by=(0, 1)) == [(NOTE, 6)]


def test_statistics_beside_the_model_that_are_brought_together_or_feed_nothing_are_left_alone() -> None:
    assert beside({1: 1}, {1: 1}, {}, {1: 1}) == []
    assert beside(*APART, used=(0,)) == []
    assert beside(*APART, local=True) == []
    assert beside(*APART, source=SCALE.replace("lerp_(seen, 0.1)", "copy_(seen)")) == []
    assert beside(*APART[:2]) == []
