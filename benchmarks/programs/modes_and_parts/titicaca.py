"""One shared trunk for several clinics; every worker hosts one clinic's data and that clinic's own head."""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, random_split


@dataclass(frozen=True)
class Clinic:
    name: str
    outputs: int
    seed: int


CLINICS = [Clinic("cardiology", 3, 101), Clinic("renal", 5, 202)]


class Trunk(nn.Module):
    def __init__(self, inputs=16, width=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width),
                                    nn.GELU(), nn.LayerNorm(width))

    def forward(self, x):
        return self.layers(x)


def records(clinic, n=800, inputs=16):
    common = torch.randn(inputs, 6, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(clinic.seed)
    x = torch.randn(n, inputs, generator=g)
    own = torch.randn(6, clinic.outputs, generator=g)
    return TensorDataset(x, (torch.tanh(x @ common / 4) @ own).argmax(1))


@torch.no_grad()
def score(trunk, head, loader):
    trunk.eval(), head.eval()
    hits = torch.zeros(2)
    for x, y in loader:
        hits += torch.tensor([(head(trunk(x)).argmax(1) == y).sum().item(), len(y)])
    trunk.train(), head.train()
    return (hits[0] / hits[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--out", default="out_titicaca")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == len(CLINICS), "one worker per clinic"
    clinic = CLINICS[rank]

    torch.manual_seed(0)
    trunk = DDP(Trunk())
    torch.manual_seed(clinic.seed)
    head = nn.Linear(64, clinic.outputs)  # private to this clinic, never leaves the worker
    train, held = random_split(records(clinic), [640, 160], generator=torch.Generator().manual_seed(clinic.seed))
    order = RandomSampler(train, generator=torch.Generator().manual_seed(clinic.seed + 1))
    loader = DataLoader(train, args.batch, sampler=order, drop_last=True)
    held_loader = DataLoader(held, 80)
    opt_trunk = torch.optim.AdamW(trunk.parameters(), lr=2e-3)
    opt_head = torch.optim.AdamW(head.parameters(), lr=5e-3)

    for epoch in range(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(head(trunk(x)), y)
            opt_trunk.zero_grad()
            opt_head.zero_grad()
            loss.backward()
            opt_trunk.step()
            opt_head.step()
        rows = [None] * world
        dist.all_gather_object(rows, (clinic.name, loss.item(), score(trunk.module, head, held_loader)))
        if rank == 0:
            print(f"epoch {epoch} " + " | ".join(f"{n}: loss {l:.3f} acc {a:.3f}" for n, l, a in rows), flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save(head.state_dict(), os.path.join(args.out, f"head_{clinic.name}.pt"))
    if rank == 0:
        torch.save(trunk.module.state_dict(), os.path.join(args.out, "trunk.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
