"""A job is ended when a finding that was asked for is certain, and never because of any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

pytestmark = pytest.mark.job
Run = Callable[..., Finished]
Script = Callable[..., Path]
TRAINING = """
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    inputs = torch.randn(8, 4)
    if rank == 1 and step == 20:
        inputs[3, 2] = float("nan")
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
open(f"done-{rank}", "w").close()
dist.destroy_process_group()
"""


def test_the_first_nan_ends_the_job_where_that_was_asked_for(distdoctor: Run, script: Script, tmp_path: Path) -> None:
    script(TRAINING)

    done = distdoctor("run", "--nproc", 2, "--stop-on", "nan", "--output-format", "json", "train.py", 100_000)

    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["evidence"]["step"]) == ("DD801", [1], 21)
    assert "DD801 is certain: ending the ranks (--stop-on)" in done.err
    assert done.code == 1
    assert all(end["ended_by_launcher"] for end in done.job["ends"].values())
    assert not list(tmp_path.glob("done-*"))


def test_another_finding_ends_nothing(distdoctor: Run, script: Script, tmp_path: Path) -> None:
    script(TRAINING)

    done = distdoctor("run", "--nproc", 2, "--stop-on", "unsynchronised-gradients", "train.py", 150)

    assert "DD801" in done.out
    assert "ending the ranks" not in done.err
    assert len(list(tmp_path.glob("done-*"))) == 2


def test_a_likely_reason_ends_the_job_once_it_is_proven_that_ranks_wait_for_ever(
    distdoctor: Run, script: Script
) -> None:
    script("if rank == 0:\n    dist.barrier()\ndist.all_reduce(t)\n")

    done = distdoctor("run", "--nproc", 2, "--on-hang", "report", "--stop-on", "DD112", "train.py")

    assert "the job hangs: ending its ranks (--stop-on DD112)" in done.err
    assert done.out.startswith("DD112")
    assert done.code == 3


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("DD999", "there is no such check"),
        ("DD204", "DD204 is certain only when the job is over"),
        ("corrupted-replica", "DD214 is never certain, only likely"),
    ],
)
def test_what_can_never_end_a_job_is_refused_before_it_starts(
    distdoctor: Run, script: Script, word: str, words: str
) -> None:
    script(TRAINING)

    done = distdoctor("run", "--nproc", 2, "--stop-on", word, "train.py", 1)

    assert done.code == 2
    assert words in done.err
