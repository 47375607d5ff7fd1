"""Ranks that decide by what `reduce` gave one of them: the call is named as what to change."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
TRAINING = """\
import torch
import torch.distributed as dist


def validate(model, batches):
    total = torch.stack([model(one).sum() for one in batches]).sum()
    {reduces}
    return total.item()


def train(model, batches, held_out, best):
    for one in batches:
        model(one).sum().backward()
        score = validate(model, held_out)
        if score < best:
            best = score
            dist.barrier()
"""


@pytest.mark.parametrize(
    ("reduces", "change"),
    [
        ("dist.reduce(total, dst=0)", "call all_reduce instead of reduce at train.py:7"),
        ("dist.reduce(total, 0, op=dist.ReduceOp.SUM)", "call all_reduce instead of reduce at train.py:7"),
        ("pass", "decide once for all ranks"),
    ],
)
def test_a_decision_by_what_only_one_rank_received_is_mended_where_it_was_reduced(reduces: str, change: str) -> None:
    script = recording(ranks=2).source("train.py", TRAINING.format(reduces=reduces))
    script.collective("all_reduce", [17], site="train.py:13 train").step()
    script.collective("all_reduce", [17], site="train.py:13 train").instead(
        1, op="barrier", reduce_op=None, site="train.py:17 train"
    )

    found = examine(script.live(), CHECKS, live=True).findings[0]

    assert found.prescriptions[0].change.startswith(change)
