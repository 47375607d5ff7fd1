"""DD503 tells who asks for the search for unused parameters: the script, or the library that wraps its model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor_checks.speed import needless_find_unused

OF_TRAINER = "TrainingArguments(..., ddp_find_unused_parameters=False)"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("from transformers import Trainer, TrainingArguments\nTrainer(model).train()\n", OF_TRAINER),
        ("from accelerate import Accelerator\nmodel = Accelerator().prepare(model)\n", "Accelerator(kwargs_handlers="),
        ("import transformers\nmodel = DDP(model, find_unused_parameters=True)\n", ""),
        ("model = wrapped(model)\n", ""),
    ],
)
def test_whoever_asks_for_the_search_is_to_stop(text: str, change: str) -> None:
    job = needless_find_unused.sick()
    path = next(finding.place for finding in examine(job, [PLUGINS.checks["DD503"]]).findings if finding.place).path

    (finding,) = examine(replace(job, sources={path: text}), [PLUGINS.checks["DD503"]]).findings

    told = finding.prescriptions[0].change
    assert told.startswith(change) if change else not told
