"""What a command line asks for becomes one value, or one sentence with a way out, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from reference_training import STRATEGIES, request

import distdoctor_strategies as plugin
from distdoctor.errors import WrongUse
from distdoctor.workloads.request import COMMON_OPTIONS, TrainingRequest, make_request, validate

NAMES = ["single", "dp", "ddp", "fsdp", "pipeline", "amp", "model-parallel", "tensor", "hybrid"]


def asked(strategy: str, **values: Any) -> TrainingRequest:
    return make_request(
        STRATEGIES[strategy], values, models=plugin.distdoctor_models(), sources=plugin.distdoctor_data()
    )


def test_the_nine_strategies_are_offered() -> None:
    assert sorted(STRATEGIES) == sorted(NAMES)


@pytest.mark.job
def test_listing_what_there_is_and_validating_needs_no_torch() -> None:
    code = (
        "import sys, distdoctor_strategies as p\n"
        "from distdoctor.workloads.request import make_request, validate\n"
        "for s in p.distdoctor_strategies():\n"
        "    validate(make_request(s, {}, models=p.distdoctor_models(), sources=p.distdoctor_data()), 2)\n"
        "print(sorted({'torch', 'numpy', 'pluggy', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.job
def test_a_rank_imports_nothing_of_the_command_line() -> None:
    code = (
        "import sys, distdoctor_strategies.ddp, distdoctor.workloads.train\n"
        "print(sorted({'click', 'rich_click', 'pluggy', 'rich', 'psutil', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_a_request_survives_its_way_to_the_ranks() -> None:
    sent = asked("pipeline", model="gpt", data="bytes:/some/file", micro_batches=8, epochs=3, precision="bf16")
    assert TrainingRequest.from_json(sent.to_json()) == sent
    assert sent.model == "distdoctor.workloads.models.gpt:make"
    assert (sent.data, sent.data_path) == ("distdoctor.workloads.data.text:make", "/some/file")
    assert sent.options == {"schedule": "1f1b", "micro_batches": 8}


def test_a_request_of_another_version_is_refused_by_name() -> None:
    text = json.dumps({**json.loads(asked("ddp").to_json()), "warp": 9})
    with pytest.raises(WrongUse, match="holds warp"):
        TrainingRequest.from_json(text)


def test_every_common_option_is_a_field_with_the_same_default() -> None:
    defaults = TrainingRequest(strategy="", train="")
    assert {option.key: option.default for option in COMMON_OPTIONS} == {
        option.key: getattr(defaults, option.key) for option in COMMON_OPTIONS
    }


def test_a_model_brings_its_own_data_unless_told_otherwise() -> None:
    assert asked("ddp", model="gpt").data == "distdoctor.workloads.data.text:make"
    assert asked("ddp", model="gpt", data="fake").data == "distdoctor.workloads.data.torchvision_data:fake"
    assert asked("ddp", model="mylab.nets:small").model == "mylab.nets:small"


REFUSED: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("ddp", 2, {"model": "gtp"}, "there is no model named gtp", "Did you mean gpt?"),
    ("ddp", 2, {"data": "mnist"}, "--data mnist needs to know where", "--data mnist:PATH"),
    ("ddp", 2, {"data": "digit"}, "there is no data named digit", "Did you mean digits?"),
    ("ddp", 2, {"schedule": "gpipe"}, "ddp has no option --schedule", "--strategy ddp --help"),
    ("ddp", 4, {"batch_size": 30}, "30 samples does not divide among 4 data-parallel ranks", "--batch-size 28"),
    ("ddp", 3, {"batch_size": 2}, "2 samples does not divide among 3", "--batch-size 3"),
    ("ddp", 2, {"offload": True}, "ddp does not shard them", "--strategy fsdp --offload"),
    ("ddp", 2, {"epochs": 0}, "--epochs is 0", "at least 1"),
    ("ddp", 2, {"precision": "fp8"}, "no precision 'fp8'", "fp32, bf16, fp16"),
    ("amp", 2, {"precision": "fp32"}, "would train in full precision", "bf16 or fp16"),
    ("single", 1, {"accumulate": 3}, "32 samples does not divide among 1 data-parallel ranks x 3 micro-steps", "30"),
    ("pipeline", 2, {"micro_batches": 5}, "32 samples does not divide into 5 micro-batches", "--micro-batches"),
    ("pipeline", 4, {"micro_batches": 2}, "keeps 4 stages busy", "--schedule gpipe"),
    ("pipeline", 1, {"schedule": "interleaved"}, "there is one rank", "--schedule 1f1b"),
    ("pipeline", 3, {"schedule": "interleaved"}, "rounds of 3 micro-batches", "multiple of 3"),
    ("tensor", 2, {"precision": "fp16"}, "GradScaler does not unscale", "--precision bf16"),
    ("hybrid", 4, {"mesh": "shard=2,tensor=2", "precision": "fp16"}, "GradScaler does not unscale", "bf16"),
    ("hybrid", 4, {"mesh": "shard=2"}, "has 2 = 2 places for 4 ranks", "product of the axes"),
    ("hybrid", 4, {"mesh": "2x2"}, "--mesh 2x2 is not a mesh", "shard=2,tensor=2"),
    ("hybrid", 4, {"mesh": "depth=4"}, "--mesh depth=4 is not a mesh", "replicate, shard, tensor"),
]


@pytest.mark.parametrize(("strategy", "world_size", "values", "message", "way_out"), REFUSED)
def test_what_makes_no_sense_is_refused_in_one_sentence_with_a_way_out(
    strategy: str, world_size: int, values: dict[str, Any], message: str, way_out: str
) -> None:
    with pytest.raises(WrongUse) as caught:
        validate(asked(strategy, **values), world_size)
    assert message in str(caught.value)
    assert way_out in caught.value.way_out


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_defaults_of_every_strategy_suit_one_two_and_four_ranks(strategy: str, world_size: int) -> None:
    asked_for = request(strategy)

    validate(asked_for, world_size)

    assert asked_for.batch_size % world_size == 0
