"""`distdoctor check-memory` on a real job: the answer in its first line, and an exit code for the budget."""

from __future__ import annotations

import os
import re
from pathlib import Path

import forked_command
import pytest

pytestmark = pytest.mark.job

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(12):
    inputs = torch.randn(512, 512)
    optimizer.zero_grad()
    outputs = model(inputs)
    outputs.square().mean().backward()
    optimizer.step()
    kept.append(outputs)
dist.destroy_process_group()
"""


def test_the_answer_comes_first_with_what_grows_and_what_would_save(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["check-memory", "--nproc", "2", "--budget", "256MiB", "train.py"]
    done = forked_command.run(words, tmp_path, {**os.environ, "OMP_NUM_THREADS": "1", "CI": "1"}, timeout=120)
    lines = done.stdout.splitlines()

    assert done.returncode == 1, done.stderr
    assert re.match(
        r"rank \d needs most: .* does NOT fit into 256 MiB: .*; `kept` keeps the graph of every step: 1 MiB .*, train.py:16",
        lines[0],
    )
    assert re.match(r"  grows   `kept` keeps the graph of every step: 1 MiB .*, train.py:16 .*, ranks 0-1", lines[1])
    table = "\n".join(lines)
    assert "parameters  gradients  optimizer state  activations" in table
    assert re.search(r" 2 MiB  1 \(ReLU\) +train.py:13", table)  # what relu gives, once
    assert "fully_shard over 2 ranks: about 8" in table
    assert re.search(
        r"DD407 error +ranks 0-1  train.py:15 .* rank \d needs .* more than the budget of 256 MiB", done.stdout
    )
    assert "DD401 warning  ranks 0-1  train.py:16" in done.stdout
