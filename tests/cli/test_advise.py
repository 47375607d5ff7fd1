"""`distdoctor advise`: the answer first, the arithmetic behind it, and one clear sentence where the question is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

Say = Callable[..., object]

MODEL = ("--model", "mlp")


@pytest.mark.job
def test_the_first_line_is_the_answer_and_the_arithmetic_adds_up(say: Say) -> None:
    said = say("advise", *MODEL, "--gpus", "2x8MiB", "--batch", "64")

    lines = said.out.splitlines()
    assert said.code == 0
    assert re.fullmatch(
        r"ddp fits 2 x 8 MiB with a batch of 64: [\d.]+ MiB of 7.36 MiB per device, at most a batch of \d+", lines[0]
    )
    peak = next(line for line in lines if line.startswith("  peak"))
    left, _, right = peak.partition(" = ")
    parts = [float(number) for number in re.findall(r"[\d.]+", left)]
    assert sum(parts) == pytest.approx(float(right.split()[0]), abs=0.1 * len(parts))
    assert "checkpoint-activations, after ddp" in said.out
    assert "assumed, --tflops" in said.out


@pytest.mark.job
def test_as_json_every_plan_has_its_bytes_and_the_cheapest_that_fits_is_first(say: Say) -> None:
    found = json.loads(say("advise", *MODEL, "--gpus", "1x2MiB", "--batch", "8", "--output-format", "json").out)

    fitting = [plan for plan in found["plans"] if plan["fits"]]
    assert found["plans"][: len(fitting)] == fitting
    assert [p["seconds"]["together"] for p in fitting] == sorted(p["seconds"]["together"] for p in fitting)
    assert found["answer"].startswith(f"{fitting[0]['name']} fits 1 x 2 MiB")
    assert found["parameters"] == 105_162
    for plan in found["plans"]:
        if "peak_bytes" in plan:
            assert sum(plan["categories"].values()) == plan["peak_bytes"]
            assert plan["fits"] == (plan["peak_bytes"] <= found["machine"]["usable_bytes"])
            assert plan["largest_batch"] >= 8 or not plan["fits"]


@pytest.mark.job
def test_where_nothing_fits_it_says_what_needs_the_least_and_exits_with_1(say: Say) -> None:
    said = say("advise", *MODEL, "--gpus", "1x1MiB", "--batch", "8", "--headroom", "0.9")

    assert said.code == 1
    assert said.out.startswith("nothing fits 1 x 1 MiB with a batch of 8: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise"], "--gpus is missing"),
        (["advise", "--gpus", "many"], "--gpus many says neither how many devices nor how much memory"),
        (["advise", "--gpus", "0x80GiB"], "--gpus 0x80GiB says neither"),
        (["advise", "--gpus", "8x80GiB", "--model", "gtp"], "there is no model named gtp"),
        (["advise", "--gpus", "8x80GiB", "--model", "nowhere_at_all:make"], "there is no module nowhere_at_all"),
        (["advise", "--gpus", "3x1GiB", "--batch", "4"], "a batch of 4 samples does not divide among 3 devices"),
        (["advise", "--try", "prayer"], "there is no remedy prayer to try"),
        (
            ["advise", "--try", "shard-the-optimizer", "--strategy", "fsdp"],
            "strategy fsdp has no option shard-optimizer",
        ),
        (["advise", "--try", "fully-shard", "--strategy", "fsdp"], "the training has fully-shard already"),
        (["advise", "--gpus", "2x1GiB", "--find-batch-size", "--strategy", "dpp"], "there is no strategy dpp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_question_is_one_sentence_and_exit_code_2(say: Say, words: list[str], message: str) -> None:
    said = say(*words)

    assert said.code == 2
    assert said.out == ""
    assert message in said.err


@pytest.mark.job
def test_a_model_without_blocks_is_planned_and_one_that_does_not_fit_the_data_is_sent_to_them(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text(
        "from torch import nn\n\n\ndef flat():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n\n\n"
        "def narrow():\n    return nn.Linear(64, 10)\n"
    )
    monkeypatch.chdir(tmp_path)
    flat, narrow = (say("advise", "--gpus", "2x1GiB", "--model", f"mine_alone:{name}") for name in ("flat", "narrow"))

    assert (flat.code, flat.out.split(" with ")[0]) == (0, "ddp fits 2 x 1 GiB")
    assert narrow.code == 5
    assert "give its own by --data" in narrow.err


def test_its_help_needs_no_torch(modules_after: Callable[..., list[set[str]]]) -> None:
    assert not modules_after(["advise", "--help"])[0] & {"torch", "numpy"}


@pytest.mark.job
def test_a_remedy_that_is_tried_saves_what_was_predicted(say: Say, tmp_path: Path) -> None:
    said = say(
        "advise", "--try", "checkpoint-activations", "--model", "gpt", "--batch", "8", "--nproc", "1", "--backend", "gloo",
        "--output-format", "json", "-o", tmp_path / "trial.json",
    )  # fmt: skip

    found = json.loads((tmp_path / "trial.json").read_text())
    assert said.code == 0
    assert found["verified"]
    assert found["measured_saving"] == pytest.approx(found["predicted_saving"], rel=0.1)
    assert found["recomputed_flops"] > 0


@pytest.mark.job
def test_a_rank_with_a_budget_trains_within_it_and_is_refused_more() -> None:
    from dataclasses import replace

    from distdoctor import plugins
    from distdoctor.planning.largest_batch import _runs_short
    from distdoctor.planning.prediction import Predictor
    from distdoctor.workloads.request import make_request

    found = plugins.load()
    request = make_request(
        found.strategies["single"], {"model": "gpt"}, models=found.models.values(), sources=found.data.values(), backend="gloo"
    )  # fmt: skip
    budget = 300 << 20
    predicted = Predictor(request, 1).largest(budget)

    assert not _runs_short(replace(request, batch_size=int(0.8 * predicted)), 1, budget)
    assert _runs_short(replace(request, batch_size=int(1.3 * predicted)), 1, budget)


@pytest.mark.parametrize("really", [90, 100, 117])
def test_the_search_ends_at_the_edge_wherever_it_lies(say: Say, monkeypatch: pytest.MonkeyPatch, really: int) -> None:
    from distdoctor.planning import largest_batch

    monkeypatch.setattr(largest_batch, "_runs_short", lambda request, ranks, budget: request.batch_size > really)
    monkeypatch.setattr(largest_batch.Predictor, "largest", lambda self, budget: 100)

    said = say("advise", "--find-batch-size", "--gpus", "2x1GiB", "--strategy", "ddp", "--output-format", "json")

    found = json.loads(said.out)
    assert said.code == 0
    assert found["largest"] <= really < found["too_large"]
    assert found["too_large"] - found["largest"] <= 2
    assert found["predicted"] == 100
