"""A framework's loop ends where the user's code tells it to: that is what parts the ranks, and what they have to vote on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
TRAINING = """\
import torch
import lightning
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 1)
        self.best, self.bad = float("inf"), 0

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.body(batch[0]), batch[1])
        self.watch(loss)
        return loss

    def watch(self, loss):
        if loss.item() < self.best:
            self.best, self.bad = loss.item(), 0
        else:
            self.bad += 1
        if self.bad >= 2:
            self.trainer.should_stop = True

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(640, 16)
    y = x.sum(1, keepdim=True) + torch.randn(640, 1)
    quiet = dict(enable_progress_bar=False, logger=False, enable_checkpointing=False, enable_model_summary=False)
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", devices=2, strategy="ddp", **quiet)
    trainer.fit(Net(), DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))
"""
FIT, CONDITION = 35, 22


def told(operation: str | None) -> Finding:
    """Rank 1 leaves the loop after three steps: to another call of the framework's, or to its end."""
    script = recording(ranks=2).source("train.py", TRAINING)
    for _ in range(3):
        script.collective("all_reduce", [17], site=f"train.py:{FIT} <module>").step()
    if operation is None:
        script.exits(1)
    script.collective("all_reduce", [17], site=f"train.py:{FIT} <module>")
    if operation is not None:
        dtype = "int64" if operation == "all_reduce" else "float32"
        script.instead(1, op=operation, reduce_op="sum" if operation == "all_reduce" else None, dtype=dtype)
    return examine(script.live(), CHECKS, live=True).findings[0]


@pytest.mark.parametrize(("operation", "code"), [(None, "DD109"), ("all_gather", "DD102"), ("all_reduce", "DD101")])
def test_the_condition_that_stops_the_frameworks_loop_decides_and_is_what_to_vote_on(
    operation: str | None, code: str
) -> None:
    finding = told(operation)

    assert finding.code == code
    assert finding.prescriptions[0].slug == "decide-once"
    shown = {place.site.line: place.role for place in finding.places}
    assert shown[CONDITION] == "decides: `if self.bad >= 2`"


@pytest.mark.job
def test_a_real_training_shows_the_condition_and_the_vote(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = [sys.executable, "-m", "distdoctor", "run", "--on-hang", "abort", "--nproc", "2", "train.py"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert "decides: `if self.bad >= 2`" in done.stdout
    assert "+        torch.distributed.all_gather_object(votes, bool(self.bad >= 2))" in done.stdout
