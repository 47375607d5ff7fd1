"""Ranks that write what only they hold to one file: saving on one rank would lose the parts of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.trace.events import Saving
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

SOURCE = (
    "import torch.distributed as dist\ndef main(model, path):\n"
    + "\n" * 39
    + "    torch.save(model.state_dict(), path)\n"
)


def finding(*weights: dict[str, str]) -> Finding:
    """What each rank held when it saved to the path of all."""
    job = trained_job(2).initial().step()
    job.note(Saving("/job/last.pt", "torch.save", 1, 2**40), site="train.py:42 main")
    states = tuple(
        snapshot("save", run="one", rank=rank, step=1, weights=held, paths=["/job/last.pt"])
        for rank, held in enumerate(weights)
    )
    recording = replace(job.recording(sources={"/job/train.py": SOURCE}), states=states)
    (found,) = examine(recording, [one for one in PLUGINS.checks.values() if one.code == "DD703"]).findings
    return found


@pytest.mark.parametrize("other", [{"top": "a", "table": "c"}, {"top": "a", "other": "b"}], ids=["values", "names"])
def test_parts_of_a_rank_get_a_file_of_their_own(other: dict[str, str]) -> None:
    found = finding({"top": "a", "table": "b"}, other)

    assert [one.slug for one in found.prescriptions] == ["save-per-rank"]
    assert [one.patch for one in found.prescriptions] == [None]
    assert "each with values of its own in " in found.why


def test_replicas_are_saved_by_one_rank() -> None:
    found = finding({"top": "a"}, {"top": "a"})

    assert [one.slug for one in found.prescriptions] == ["save-on-rank-zero"]
    assert found.prescriptions[0].patch is not None
