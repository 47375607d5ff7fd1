"""Schedules that accelerate moves once for every process in each step, and how long they were made."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.lint.examine import examine

TRAIN = """\
from accelerate import Accelerator
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR
from transformers import get_scheduler
def main():
    accelerator = Accelerator({options})
    model, optimizer, loader = accelerator.prepare(Net(), made(), loaded())
    schedule = {made}
    {prepare}
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        schedule.step()
"""
PREPARE = "schedule = accelerator.prepare(schedule)"
COSINE = "CosineAnnealingLR(optimizer, T_max=3 * len(loader))"


def told(made: str = COSINE, *, options: str = "", prepare: str = PREPARE) -> list[Finding]:
    return found(TRAIN.format(made=made, options=options, prepare=prepare))


def found(text: str) -> list[Finding]:
    return [one for one in examine({"train.py": text}).findings if one.code == "DD218"]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (COSINE, ""),
        (COSINE, "mixed_precision='bf16'"),
        ("OneCycleLR(optimizer, 0.1, steps_per_epoch=len(loader), epochs=3)", ""),
        ("get_scheduler('cosine', optimizer, 10, 3 * len(loader))", ""),
        ("get_scheduler(name=kind, optimizer=optimizer, num_training_steps=3 * len(loader))", ""),
        ("LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (3 * len(loader))))", ""),
        ("CosineAnnealingLR(optimizer, 3 * len(loader) // 4)", "gradient_accumulation_steps=4"),
    ],
)
def test_a_length_in_batches_of_one_process_is_told_where_the_schedule_is_prepared(made: str, options: str) -> None:
    (finding,) = told(made, options=options)

    assert finding.place is not None
    assert (finding.place.line, finding.confidence, finding.prescriptions[0].slug) == (
        8,
        LIKELY,
        "as-long-as-the-training",
    )
    assert "do not prepare `schedule`" in finding.prescriptions[0].change
    assert next((place.site.line, place.role) for place in finding.places) == (7, "counts the batches of one process")


@pytest.mark.parametrize(
    ("made", "about"),
    [
        (COSINE, {"prepare": "accelerator.register_for_checkpointing(schedule)"}),
        (COSINE, {"prepare": "accelerator.prepare(schedule)"}),  # moves the one that it has not prepared
        (COSINE, {"options": "split_batches=True"}),
        (COSINE, {"options": "step_scheduler_with_optimizer=False"}),
        (COSINE, {"options": "dataloader_config=config"}),
        (COSINE, {"options": "**options"}),
        (COSINE, {"options": "gradient_accumulation_steps=4"}),  # moved on every fourth batch, four times
        ("CosineAnnealingLR(optimizer, T_max=3 * len(loader) * accelerator.num_processes)", {}),
        ("CosineAnnealingLR(optimizer, T_max=3 * len(loader) * world_size)", {}),
        ("CosineAnnealingLR(optimizer, T_max=1000)", {}),
        ("CosineAnnealingLR(optimizer, T_max=len(rows) // 16)", {}),
        ("CosineAnnealingWarmRestarts(optimizer, len(loader))", {}),
        ("get_scheduler('constant_with_warmup', optimizer, 10, 3 * len(loader))", {}),
        ("get_scheduler(SchedulerType.COSINE_WITH_RESTARTS, optimizer, 10, 3 * len(loader))", {}),
        ("LambdaLR(optimizer, lambda step: (step % len(loader)) / len(loader))", {}),
        ("LambdaLR(optimizer, rate)", {}),
    ],
)
def test_schedules_that_are_as_long_as_their_moves_or_begin_anew_are_silent(made: str, about: dict[str, str]) -> None:
    assert told(made, **about) == []


ACROSS = """\
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
def scheduled(accelerator, optimizer, loader, epochs):
    total = epochs * len(loader)
    schedule = get_linear_schedule_with_warmup(optimizer, total // 10, total)
    return accelerator.prepare(schedule)
def main():
    accelerator = Accelerator()
    loader = loaded()
    {first}
    schedule = scheduled(accelerator, optimizer, loader, 3)
    {then}
"""
LOADER = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"


def test_the_length_counts_what_the_loader_is_when_it_is_taken() -> None:
    """Before the loader is prepared its length counts the batches of all processes, and one move for each of them is right."""
    (finding,) = found(ACROSS.format(first=LOADER, then="pass"))

    assert finding.place is not None
    assert finding.place.line == 6
    assert found(ACROSS.format(first="pass", then=LOADER)) == []


ONE_CALL = """\
import math
from accelerate import Accelerator
from transformers import get_scheduler
def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    loader = loaded(args.per_device_batch_size)
    updates = math.ceil(len(loader) / args.accumulate)
    steps = args.epochs * updates
    schedule = get_scheduler(name=args.kind, optimizer=optimizer, num_warmup_steps=10, num_training_steps=steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    updates = math.ceil(len(loader) / args.accumulate)
    steps = args.epochs * updates
"""


def test_the_way_of_the_examples_is_silent() -> None:
    assert found(ONE_CALL) == []
