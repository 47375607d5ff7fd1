"""Every planted illness is found, in a real job, and named as the drill says; the job without it is silent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_command
import pytest
from commands import Said
from jobs.drills import planted, recorded, watched
from reference_training import request

from distdoctor import plugins
from distdoctor.diagnosis.data.resumption import compare
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.offers import Drill
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job
PLUGINS = plugins.load()
# Whoever dies, fills the memory, or hangs so that only its stack says why needs a launcher that watches; the others need real
# ranks only, which start ten times as fast in the fork server: those that hang are told by their traces, while they hang.
FAMILIES = (
    "DD105",
    "DD120",
    "DD123",
    "DD2",
    "DD3",
    "DD401",
    "DD405",
    "DD410",
    "DD411",
    "DD412",
    "DD5",
    "DD701",
    "DD702",
    "DD703",
    "DD705",
    "DD8",
)
IN_RANKS = [drill for drill in PLUGINS.drills.values() if drill.code.startswith(FAMILIES)]
BY_THEIR_TRACES = (
    *(f"DD{code}" for code in (101, 102, 103, 104, 106, 107, 108, 109, 111, 112, 113, 114, 119, 121, 124, 125, 128)),
)
# Gloo may end a rank in the first of two calls of other sizes: then nobody has seen yet that they come in another order.
CUT_SHORT = {"DD107": ("DD103",)}
IN_RANKS_THAT_HANG = [drill for drill in PLUGINS.drills.values() if drill.code in BY_THEIR_TRACES]
# What only shows after a resumption has tests of its own; what shows at the end of the interpreter needs one that ends.
BY_COMMAND = [
    drill
    for drill in PLUGINS.drills.values()
    if drill not in (*IN_RANKS, *IN_RANKS_THAT_HANG) and drill.code not in ("DD704", "DD706")
]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CI": "true"}


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of `distdoctor run` with these words."""
    command = ["run", "--output-format", "json", "--run-dir", str(folder), *words]
    done = forked_command.run(command, folder.parent, environment(), timeout=200)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def strategy_of(drill: Drill) -> str:
    return "ddp" if "ddp" in drill.strategies or not drill.strategies else drill.strategies[0]


@pytest.mark.parametrize("drill", BY_COMMAND, ids=[drill.slug for drill in BY_COMMAND])
def test_a_planted_illness_is_found_first_and_its_rank_is_named(
    drill: Drill, tmp_path: Path, say: Callable[..., Said]
) -> None:
    words = ["--strategy", strategy_of(drill), "--nproc", str(drill.needs_ranks), "--fire-drill", drill.slug]

    _, report = run(
        tmp_path / "run", *words, "--no-evaluate", "--hang-after", "20"
    )  # only what is proven ends by itself

    first = report["findings"][0]
    assert first["code"] == drill.code, [finding["title"] for finding in report["findings"]]
    assert set(drill.ranks) <= set(first["ranks"])
    assert first["place"]["path"].endswith(".py")
    later = say("report", "--output-format", "json", tmp_path / "run")  # when the job is gone
    assert said(json.loads(later.out)) == said(report)


def said(report: dict[str, Any]) -> list[Any]:
    return [(finding["code"], finding["ranks"], finding["title"]) for finding in report["findings"]]


@pytest.mark.parametrize("drill", IN_RANKS_THAT_HANG, ids=[drill.slug for drill in IN_RANKS_THAT_HANG])
def test_a_planted_hang_is_found_while_its_ranks_hang(drill: Drill) -> None:
    def told(recording: Recording) -> Diagnosis:
        return examine(recording, PLUGINS.checks.values(), live=recording.job.running)

    seen = watched(
        drill, strategy_of(drill), lambda recording: drill.code in {f.code for f in told(recording).findings}
    )

    first = told(seen).findings[0]
    assert first.code in (drill.code, *CUT_SHORT.get(drill.code, ())), [
        finding.title for finding in told(seen).findings
    ]
    assert set(drill.ranks) <= set(first.ranks)
    assert first.place.path.endswith(".py")


@pytest.mark.parametrize("drill", IN_RANKS, ids=[drill.slug for drill in IN_RANKS])
def test_a_planted_illness_is_found_in_what_its_ranks_record(drill: Drill) -> None:
    diagnosis = examine(planted(drill, strategy_of(drill)), PLUGINS.checks.values())

    told = [finding for finding in diagnosis.findings if finding.code == drill.code]
    worse = [f.title for f in diagnosis.findings if told and (f.severity or 0) > (told[0].severity or 0)]
    assert told, [finding.title for finding in diagnosis.findings]
    assert worse == []  # a note about a slow rank may be true on a busy machine
    assert set(drill.ranks) <= set(told[0].ranks)
    assert told[0].place.path.endswith(".py")


@pytest.mark.parametrize("plants", [True, False])
def test_a_resumption_that_begins_the_epoch_again_is_found(plants: bool, tmp_path: Path) -> None:
    drill, saved = PLUGINS.drills["resume-breaks-partition"], str(tmp_path / "checkpoint")
    whole, before, after = (
        planted(drill, "ddp", options={"batch_size": 128, **options}, plants=plants)
        for options in ({}, {"steps": 14, "save": saved}, {"resume": saved})
    )

    resumption = compare(whole, before, after)
    findings = examine(replace(whole, resumption=resumption), [PLUGINS.checks["DD704"]]).findings

    assert (resumption.step, resumption.epoch, resumption.lost) == (14, 1, 0)
    assert [finding.code for finding in findings] == (["DD704"] if plants else [])
    assert resumption.repeated == (resumption.into_epoch if plants else 0)


def test_a_resumption_without_the_optimizers_state_is_found(tmp_path: Path) -> None:
    command = ["check-resume", "--strategy", "ddp", "--nproc", "2", "--no-evaluate"]
    command += ["--fire-drill", "resume-restores-other-state", "--run-dir", str(tmp_path / "run")]

    done = forked_command.run(command, tmp_path, environment(), timeout=200)

    first = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["findings"][0]
    assert (first["code"], first["confidence"], first["ranks"]) == ("DD706", "certain", [0, 1]), done.stderr
    assert "are gone" in first["why"]


@pytest.mark.parametrize("strategy", ["single", "fsdp", "pipeline", "amp", "model-parallel", "tensor", "hybrid"])
def test_a_healthy_training_is_silent(strategy: str) -> None:
    recording = recorded(request(strategy, epochs=2), 1 if strategy == "single" else 2)

    diagnosis = examine(recording, PLUGINS.checks.values())

    assert [(finding.code, finding.title) for finding in diagnosis.findings] == []
    assert {end.exit_code for end in recording.job.ends.values()} == {0}


def test_a_healthy_training_is_silent_under_the_command(tmp_path: Path) -> None:
    code, report = run(tmp_path / "run", "--strategy", "ddp", "--nproc", "2", "--epochs", "2")

    assert (code, report["findings"]) == (0, [])
    assert report["job"]["exit_code"] == 0
