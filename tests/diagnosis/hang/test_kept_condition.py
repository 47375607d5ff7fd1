"""The words of a fix say what its patch does: what is left of a condition without the rank still decides."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing import recording

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
SOURCE = """\
def train(model, loader, rank):
    for step, batch in enumerate(loader):
        loss = model(batch)
        dist.all_reduce(loss)
        if step == 2 and rank == 0:
            dist.barrier()
"""


def test_what_is_left_of_the_condition_is_named() -> None:
    script = recording(ranks=2).source("train.py", SOURCE)
    for step in range(4):
        script.collective("all_reduce", [1], site="train.py:4 train").step()
        if step == 2:
            script.collective("barrier", only=0, site="train.py:6 train")

    (finding,) = examine(script.live(), HANGS, PLUGINS.remedies, live=True).findings

    (cure,) = finding.prescriptions
    assert cure.change == (
        "move the barrier at train.py:6 out of `if step == 2 and rank == 0:` (line 5), and keep it under `if step == 2:`"
    )
    assert [edit.text for edit in cure.edits] == ["        if step == 2:\n            dist.barrier()\n"]
