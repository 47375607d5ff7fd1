import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from mailbox import Mailbox


class TwoTower(nn.Module):
    def __init__(self, users=600, items=400, dim=48):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.tower_u = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
        self.tower_i = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, u, i):
        a = F.normalize(self.tower_u(self.user(u)), dim=-1)
        b = F.normalize(self.tower_i(self.item(i)), dim=-1)
        return a @ b.t() / 0.1


def clicks(n=24576, users=600, items=400, seed=3):
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(0, users, (n,), generator=g)
    i = (u % 40) * 10 + torch.randint(0, 10, (n,), generator=g)
    return TensorDataset(u, i)


class Board:
    """Rank 0 reads every rank's note and answers with the job-wide clip value for the following window."""

    def __init__(self, mail, window):
        self.mail, self.window = mail, window
        self.clip = 1.0

    def exchange(self, step, note):
        mail = self.mail
        mail.post("grad", step, note)
        if mail.rank == 0:
            notes = [mail.read("grad", step, r) for r in range(mail.world)]
            peak = sorted(n["norm"] for n in notes)[len(notes) // 2]
            for r in range(mail.world):
                mail.drop("grad", step, r)
            mail.post("clip", step, {"clip": 0.5 * self.clip + 0.5 * 1.2 * peak})
            if step >= 2 * self.window:
                mail.drop("clip", step - 2 * self.window, 0)
        self.clip = mail.read("clip", step, 0)["clip"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--window", type=int, default=4)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(TwoTower())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = clicks()
    sampler = DistributedSampler(data, world, rank, seed=9)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    board = Board(Mailbox(rank, world), args.window)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for u, i in loader:
            logits = model(u, i)
            target = torch.arange(len(u))
            loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), board.clip)
            opt.step()
            step += 1
            if step % args.window == 0:
                board.exchange(step, {"norm": norm.item(), "loss": loss.item()})
                if rank == 0 and step % 16 == 0:
                    print(f"step {step} loss {loss.item():.4f} clip {board.clip:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
