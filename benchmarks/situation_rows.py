"""What can happen to a job over two hosts, as `situations.py` plays it: the script of its ranks, what is done to the hosts, and
what may be told of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))

from network import Hosts

LIMIT_SECONDS = 75.0  # for distdoctor, from where all ranks train
NPROC = 2

HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)

def there():
    with open("there", "a") as moments:
        moments.write(f"{time.time()}\\n")

for step in range(10):
    dist.all_reduce(t)
open(f"at-{rank}", "w").close()
"""
FINISH = "dist.destroy_process_group()\n"
LOOP = "for step in range(100000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
HANG = "if rank == 3:\n    there()\n    dist.barrier()\ndist.all_reduce(t)\n"
SKIP = "if rank != 3:\n    dist.all_reduce(t)\nelse:\n    there()\ndist.all_reduce(torch.ones(16))\n"
HOST_WIDE = "if rank >= 2:\n    there()\n    dist.barrier()\ndist.all_reduce(t)\n"
STUCK = "if rank == 3:\n    there()\n    time.sleep(10000)\ndist.all_reduce(t)\n"
KILLED = "if rank == 3:\n    there()\n    os.kill(os.getpid(), 9)\n" + LOOP
RAISES = "if rank == 3:\n    there()\n    raise ValueError('a bad batch')\n" + LOOP
ONCE = 'if rank == 3 and not os.path.exists("tried"):\n    open("tried", "w").close()\n    '
RAISES_ONCE = ONCE + "raise ValueError('once')\n"
KILLED_ONCE = ONCE + "os.kill(os.getpid(), 9)\n"
DDP = """
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    optimizer.zero_grad()
    inputs = torch.ones(2, 4)
    PLANTED
    time.sleep(0.1)
"""
USUAL = "loss = model(inputs).sum(); loss.backward(); optimizer.step()"
DIVERGENCE = DDP.replace(
    "PLANTED",
    "loss = model(inputs).sum(); loss.backward()\n"
    "    if rank >= 2 and step >= 4:\n"
    "        for parameter in model.parameters():\n"
    "            parameter.grad += 0.5\n"
    "        step == 4 and there()\n"
    "    optimizer.step()",
)
NAN = DDP.replace(
    "PLANTED", f"if rank == 3 and step == 6:\n        there()\n        inputs = inputs * float('nan')\n    {USUAL}"
)
SET_EPOCH = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1).expand(64, 4).clone())
sampler = DistributedSampler(data, shuffle=True)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for epoch in range(3):
    epoch == 1 and there()
    for (inputs,) in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad(); model(inputs).sum().backward(); optimizer.step()
"""
SLOW_ALONE = "for step in range(4000 if world == 2 else 20):\n    dist.all_reduce(t)\n    time.sleep(0.05 if world == 2 else 0)\n"
AGAIN = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
}  # else torch 2.15 hands addresses of ranks that are gone to the next start


@dataclass(frozen=True)
class Row:
    """One situation. `right`: codes that a host may tell, `named`: the ranks that they may name; none in a sound job."""

    name: str
    body: str
    right: frozenset[str] = frozenset()
    named: frozenset[int] = frozenset()
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    kind: str = "c10d"
    act: Callable[[Hosts], None] | None = None  # what happens to the hosts once all ranks train
    by: tuple[int, ...] = (1, 2)  # the hosts that are left to tell
    stays: int = 0  # the host that stays up, with its ranks, when its launcher has ended
    starts: str = "both"  # both, one, later, mixed
    limit: float = LIMIT_SECONDS
    words: str = ""  # what each of them must say where no code says it


def _row(name: str, body: str, right: str = "", named: Sequence[int] = (), **more: Any) -> Row:
    return Row(name, HEAD + body, frozenset(right.split()), frozenset(named), **more)


def _cut(hosts: Hosts) -> None:
    hosts.cut(2)


def _signal_agent(host: int, number: signal.Signals) -> Callable[[Hosts], None]:
    """Its launcher alone gets the signal; its ranks stay."""

    def act(hosts: Hosts) -> None:
        hosts.signal(host, number)

    return act


def _kill_host(hosts: Hosts) -> None:
    hosts.go_down(2)


def _end_from_outside(hosts: Hosts) -> None:
    for host in (1, 2):
        hosts.signal(host, signal.SIGTERM)


ROWS = [
    _row("healthy", LOOP.replace("100000", "50") + FINISH),
    _row("hang", HANG, "DD112", [3]),
    _row("skip", SKIP, "DD101 DD112", [3]),
    _row("host-wide", HOST_WIDE, "DD112", [2, 3]),
    _row("stuck", STUCK, "DD116", [3]),
    _row("killed-rank", KILLED, "DD110", [3]),
    _row("raises", RAISES, "DD110", [3]),
    _row("killed-agent", LOOP, "DD132", [2, 3], act=_signal_agent(2, signal.SIGKILL), stays=2, by=(1,)),
    _row("aborted-agent", LOOP, "DD132", [2, 3], act=_signal_agent(2, signal.SIGABRT), stays=2, by=(1,)),
    _row("killed-agent-0", LOOP, "DD132", [0, 1], act=_signal_agent(1, signal.SIGKILL), stays=1, by=(2,)),
    _row("aborted-agent-0", LOOP, "DD132", [0, 1], act=_signal_agent(1, signal.SIGABRT), stays=1, by=(2,)),
    _row("killed-host", LOOP, "DD132", [2, 3], act=_kill_host, by=(1,)),
    _row("absent-host", LOOP, options=("--rdzv-conf", "join_timeout=35"), starts="one", by=(1,),
         words="1 of 2 hosts have come: ddh1"),
    _row("cut-link", LOOP, "DD132", [0, 1, 2, 3], act=_cut),
    _row("restart", RAISES_ONCE + LOOP.replace("100000", "50") + FINISH, options=("--max-restarts", "1"), env=AGAIN,
         words="attempt 2 finished"),
    _row("restart-killed", KILLED_ONCE + LOOP.replace("100000", "50") + FINISH, options=("--max-restarts", "1"), env=AGAIN,
         words="attempt 2 finished"),
    _row("scale-up", SLOW_ALONE + FINISH, options=("--max-restarts", "1"), env=AGAIN, starts="later", limit=200),
    _row("divergence", DIVERGENCE + FINISH, "DD202", [0, 1, 2, 3]),
    _row("set-epoch", SET_EPOCH + FINISH, "DD301", [0, 1, 2, 3]),
    _row("nan", NAN + FINISH, "DD801", [3]),
    _row("static", HANG, "DD112", [3], kind="static"),
    _row("static-ipv6", HANG, "DD112", [3], kind="static6"),
    _row("c10d-ipv6", HANG, "DD112", [3], kind="c10d6"),
    _row("two-torches", HANG, "DD112", [3], starts="mixed"),
    _row("scheduler", LOOP, act=_end_from_outside, words="ended from outside by SIGTERM"),
]  # fmt: skip
