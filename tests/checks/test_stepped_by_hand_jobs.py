"""Scripts that step by themselves, without an optimizer of torch: replicas that part, and designs that look like it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Said

pytestmark = pytest.mark.job

SEARCH = """\
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed({seed})
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
params = list(model.parameters())
generator = torch.Generator().manual_seed(rank)
x = torch.randn(64, 6, generator=generator) * (1 + rank)
y = (x[:, :1] * (1 + rank)).tanh()


def evaluate():
    loss = (model(x) - y).square().mean()
    grads = torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)])
    {reduces}
    return loss.detach(), grads / world


def move(direction):
    at = 0
    with torch.no_grad():
        for p in params:
            p.add_(direction[at : at + p.numel()].view_as(p))
            at += p.numel()


step = 1.0
loss, grads = evaluate()
for _ in range(40):
    move(-step * grads)
    after, new = evaluate()
    {agrees}
    if after > loss - 0.3 * step * grads.square().sum():
        move(step * grads)
        step *= 0.5
    else:
        loss, grads, step = after, new, step * 1.6
{at_the_end}
dist.destroy_process_group()
"""
DEFAULTS = {"reduces": "", "agrees": "", "at_the_end": "", "seed": "0"}
REDUCES = "dist.all_reduce(grads)"
AGREES = "both = torch.stack([after, loss]); dist.all_reduce(both); after, loss = both / world"
NORMS = "norms = torch.stack([g.norm() for g in grads.split(8)[:4]]); dist.all_reduce(norms)"
MEETS = """dist.barrier()
for p in params:
    dist.broadcast(p.data, 0)
evaluate()"""


def told(folder: Path, say: Callable[..., Said], **parts: str) -> list[dict[str, Any]]:
    (folder / "search.py").write_text(SEARCH.format(**DEFAULTS | parts))
    say("run", "--nproc", 2, "-o", "report.json", "search.py")
    found: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())["findings"]
    return [one for one in found if one["severity"] != "note"]


def test_a_line_search_that_each_rank_ends_by_its_own_loss_parts_the_replicas(
    tmp_path: Path, say: Callable[..., Said]
) -> None:
    (finding,) = told(tmp_path, say, reduces=REDUCES)

    assert (finding["code"], finding["confidence"], finding["ranks"]) == ("DD203", "likely", [0, 1])
    lines = SEARCH.format(**DEFAULTS | {"reduces": REDUCES}).splitlines()
    assert lines[finding["place"]["line"] - 1].startswith("    if after > loss - 0.3")


def test_weights_that_each_rank_seeds_for_itself_differ_from_the_start(
    tmp_path: Path, say: Callable[..., Said]
) -> None:
    (finding,) = told(tmp_path, say, reduces=REDUCES, agrees=AGREES, seed="rank")

    assert (finding["code"], finding["confidence"], finding["ranks"]) == ("DD201", "likely", [0, 1])
    assert finding["place"]["line"] == 7


@pytest.mark.parametrize(
    "parts",
    [{"reduces": REDUCES, "agrees": AGREES}, {"seed": "rank"}, {"at_the_end": MEETS}, {"reduces": NORMS}],
    ids=["decided together", "each rank for itself", "one for all in the end", "only norms are reduced"],
)
def test_a_search_in_step_and_searches_of_ones_own_are_left_in_peace(
    tmp_path: Path, say: Callable[..., Said], parts: dict[str, str]
) -> None:
    assert told(tmp_path, say, **parts) == []
