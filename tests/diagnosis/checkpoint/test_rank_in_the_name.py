"""A file whose name has a rank in it was meant for each rank: who writes alike there holds one number twice."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.trace.events import Saving
from distdoctor.testing.gradients import trained_job


@pytest.mark.parametrize(
    ("name", "words"), [('f"state_{self.rank}.pt"', "make it dist.get_rank()"), ('f"state_{step}.pt"', "")]
)
def test_a_save_under_one_rank_twice_is_not_left_to_rank_zero(name: str, words: str) -> None:
    job = trained_job(2).note(Saving("/job/state_0.pt", "torch.save", 10, 1), site="train.py:3 save")
    text = f"def save(self, state, step):\n    folder()\n    torch.save(state, {name})\n"
    checks = [PLUGINS.checks["DD703"]]
    (found,) = examine(job.initial().step().recording(sources={"/job/train.py": text}), checks).findings

    assert found.prescriptions[0].slug == ("save-per-rank" if words else "save-on-rank-zero")
    assert words in found.prescriptions[0].change
