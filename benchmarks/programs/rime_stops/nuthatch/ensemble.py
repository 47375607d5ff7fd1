"""Two differently sized members of an ensemble, trained side by side by two squads."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from groups import Squad

MEMBERS = {"narrow": {"hidden": 192, "epochs": 24}, "wide": {"hidden": 512, "epochs": 12}}


def synth(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    y = (torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] > 0).long()
    return TensorDataset(x, y)


def net(hidden):
    return nn.Sequential(nn.Linear(24, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                         nn.Linear(hidden, 2))


def train_member(squad, cfg, data, batch, lr):
    torch.manual_seed(10 + squad.index)
    model = DDP(net(cfg["hidden"]), process_group=squad.group)
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    sampler = DistributedSampler(data, squad.size, squad.local, seed=squad.index, drop_last=True)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    for epoch in range(cfg["epochs"]):
        sampler.set_epoch(epoch)
        s = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s, group=squad.group)
        if squad.captain and epoch % 4 == 3:
            print(f"{squad.name}: epoch {epoch} loss {s[0] / s[1]:.4f}", flush=True)
    if squad.captain:
        torch.save(model.module.state_dict(), f"{squad.name}.pt")
    return model.module.eval()


@torch.no_grad()
def vote(squad, model, data):
    x, y = data.tensors
    probs = model(x).softmax(1) if squad.captain else torch.zeros(len(x), 2)
    dist.all_reduce(probs)
    return (probs.argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--samples", type=int, default=6400)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    squad = Squad(list(MEMBERS))
    model = train_member(squad, MEMBERS[squad.name], synth(args.samples, 1), args.batch_size, args.lr)
    acc = vote(squad, model, synth(1000, 2))
    if dist.get_rank() == 0:
        print(f"ensemble accuracy {acc:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
