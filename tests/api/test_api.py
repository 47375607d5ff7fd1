"""distdoctor from Python, with real jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import distdoctor
from distdoctor.errors import NothingToInspect, WrongUse
from distdoctor.probe.start import recorded_in

pytestmark = pytest.mark.job
EXAMPLES = Path(__file__).parent.parent.parent / "examples"

ALONE = """
import torch
import distdoctor

def train():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(12):
        with distdoctor.phase("evaluation"):
            pass
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).sum()
        loss.backward()
        optimizer.step()

with distdoctor.watch("recorded") as watched:
    train()
with distdoctor.watch() as again:
    train()
assert again.folder == watched.folder
report = watched.diagnose()
print(report)
assert 'sandbox="allow-downloads"' in report._repr_html_()  # no scripts; the link to its JSON works
assert repr(report).startswith("<distdoctor report: ") and len(repr(report)) < 300, repr(report)
assert report.world_size == 1 and report.examined, report
"""

OWN_LAUNCHER = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import distdoctor

def train(rank):
    dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
    for step in range(3):
        dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)
    dist.destroy_process_group()

if __name__ == "__main__":
    with distdoctor.watch(launches_ranks=True) as watched:
        mp.spawn(train, nprocs=2)
    report = watched.diagnose()
    print([finding.code for finding in report.findings], report.world_size)
"""

TRAINER = """
import torch
import distdoctor
from transformers import Trainer, TrainingArguments
from distdoctor.callbacks.transformers import DistdoctorCallback

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(16)]
arguments = TrainingArguments(output_dir="out", max_steps=4, eval_strategy="steps", eval_steps=2, save_steps=2, use_cpu=True,
                              per_device_train_batch_size=4, report_to=[], disable_tqdm=True)
from distdoctor.recording.trace.events import LongPhase
from distdoctor.recording.trace.run_folder import read_run
def phases():
    return list(read_run(watched.folder).ranks[0].noted(LongPhase))
def note_phase(where):
    seen.append("/".join((where, *(one.phase for one in phases() if not one.ended_ns))))
    return {}
seen = []
with distdoctor.watch("recorded") as watched:
    trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=data,
                      compute_metrics=lambda predicted: note_phase("metrics"),
                      callbacks=[DistdoctorCallback()])
    trainer.train()
    note_phase("trained")
    trainer.evaluate()
    note_phase("evaluated")
    trainer.predict(data)
    note_phase("predicted")
print(*sorted({one.phase for one in phases()}), *seen)
"""

LIGHTNING = """
from pathlib import Path

import torch
import distdoctor, lightning
from distdoctor.callbacks.lightning import DistdoctorCallback
from distdoctor.recording.trace.events import LongPhase
from distdoctor.recording.trace.run_folder import read_run

def note_phase(where):
    phases = read_run(Path("recorded")).ranks[0].noted(LongPhase)
    seen.append((where, *(one.phase for one in phases if not one.ended_ns)))

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, number):
        note_phase("train")
        return self.layer(batch).square().mean()
    def validation_step(self, batch, number):
        note_phase("validate")
    def test_step(self, batch, number):
        note_phase("test")
    def predict_step(self, batch, number):
        note_phase("predict")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

seen = []
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
with distdoctor.watch("recorded"):
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=[DistdoctorCallback()], **quiet)
    loader = torch.utils.data.DataLoader(torch.ones(8, 2), 8)
    model = Net()
    trainer.fit(model, loader, loader)
    trainer.test(model, loader, verbose=False)
    trainer.predict(model, loader)
print(*("/".join(one) for one in seen))
"""


IN_EACH_RANK = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import distdoctor

def train(rank):
    with distdoctor.watch("one"):
        dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
        dist.all_reduce(torch.ones(4), op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)
        dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
    report = distdoctor.diagnose("one")
    print([finding.code for finding in report.findings], report.world_size)
"""


NAMED_MODELS = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import distdoctor

def step(model, average):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((4, 2), 1.0 + step + dist.get_rank())).square().mean().backward()
        if average:
            flat = torch.cat([p.grad.flatten() for p in model.parameters()]) / 2
            dist.all_reduce(flat)
            for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                p.grad.copy_(part.view_as(p))
        optimizer.step()

def train(rank):
    dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    averaged, apart, own = (torch.nn.Linear(2, 1) for _ in range(3))
    with distdoctor.watch([averaged, apart], folder="{folder}/one"):
        step(averaged, average=True)
        step(apart, average=False)
        step(own, average=False)  # a model of which nothing was said
    dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]))
    else:
        mp.spawn(train, nprocs=2)
"""

FALLEN_SILENT = """
import sys
import torch
import torch.distributed as dist
import distdoctor

dist.init_process_group("gloo")
sys.modules["distdoctor.probe.start"]._rank.trouble("somewhere", ValueError("a bug of ours"))
model = torch.nn.Linear(2, 1)
distdoctor.watch(model)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def _python(script: str, folder: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script.replace("{folder}", str(folder)))
    done = subprocess.run(
        [sys.executable, *launcher, str(path)], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_notebook_is_recorded_and_examined(tmp_path: Path) -> None:
    done = _python(ALONE, tmp_path)

    assert "checks" in done.stdout
    assert done.stderr.count("(recorded)\n") == 2, done.stderr  # the verdict, each time it is left


def test_a_training_whose_probe_has_fallen_silent_names_its_model_all_the_same(tmp_path: Path) -> None:
    done = _python(FALLEN_SILENT, tmp_path, "-m", "distdoctor", "run", "--nproc", "2")

    assert "Traceback" not in done.stderr


def test_ranks_of_an_own_launcher_are_recorded(tmp_path: Path) -> None:
    done = _python(OWN_LAUNCHER, tmp_path)

    assert done.stdout == "['DD105'] 2\n"
    assert "DD105 error  ranks 0-1  script.py:10 train" in done.stderr
    assert "distdoctor: 1 error (DD105) (" in done.stderr


def test_each_rank_of_an_own_launcher_can_record_itself(tmp_path: Path) -> None:
    done = _python(IN_EACH_RANK, tmp_path)

    assert done.stdout == "['DD105'] 2\n"
    assert "distdoctor: " not in done.stderr  # the other rank may be at work


@pytest.mark.parametrize(
    "launcher", [[], ["-m", "torch.distributed.run", "--nproc-per-node", "2"]], ids=["spawn", "torchrun"]
)
def test_replicas_of_a_named_model_have_to_agree(launcher: list[str], tmp_path: Path) -> None:
    done = _python(NAMED_MODELS, tmp_path, *launcher)

    report = distdoctor.diagnose(tmp_path / "one")
    assert [(finding.code, finding.confidence.name) for finding in report.findings] == [("DD202", "CERTAIN")], str(
        report
    )
    (finding,) = report.findings
    assert finding.evidence["replicas_by"] == "distdoctor.watch(model)"
    assert finding.evidence["optimizer"] == 2  # the one that is averaged agrees, and of the third nothing was said
    assert "distdoctor: " not in done.stderr  # the other rank may be at work
    assert not report.world_size < 2
    assert report.troubles == ()  # that a stream is left out is no damage
    assert any("collectives" in one.reason for one in report.not_examined)  # made before the recording began


@pytest.mark.parametrize(
    ("watch", "words"),
    [
        (lambda: distdoctor.watch([]), "was given a list, which is neither a folder nor a model"),
        (lambda: distdoctor.watch("a", folder="b"), "two folders"),
        (lambda: distdoctor.watch(group=object()), "a group, but no model"),
        (lambda: distdoctor.watch(torch.nn.Linear(1, 1), launches_ranks=True), "launches ranks"),
    ],
)
def test_what_cannot_be_watched_is_told_in_a_sentence(watch: Callable[[], object], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        watch()


def test_a_trainer_hands_over_its_phases(tmp_path: Path) -> None:
    noted, seen = ["checkpoint", "evaluation"], ["metrics/evaluation", "metrics/evaluation", "trained"]
    seen += ["metrics/evaluation", "evaluated", "metrics/evaluation", "predicted"]  # what the program calls itself

    assert _python(TRAINER, tmp_path).stdout.splitlines()[-1].split() == noted + seen


def test_lightning_hands_over_its_phases(tmp_path: Path) -> None:
    pytest.importorskip("lightning")

    check, *epochs, test, predict = _python(LIGHTNING, tmp_path).stdout.splitlines()[-1].split()

    assert (check, test, predict) == ("validate/evaluation", "test/evaluation", "predict/evaluation")
    assert epochs == ["train", "validate/evaluation"] * 2


def test_no_recording_is_told_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(NothingToInspect, match="holds no recording"):
        distdoctor.diagnose(tmp_path)


def test_a_phase_without_a_recording_is_nothing() -> None:
    ran = []

    with distdoctor.phase("evaluation"):
        ran.append("evaluation")
    with pytest.raises(OSError, match="no space"), distdoctor.phase("checkpoint"):
        raise OSError("no space")

    assert ran == ["evaluation"]
    assert recorded_in() is None
