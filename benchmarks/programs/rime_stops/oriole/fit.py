"""System identification: recover frequency and damping from noisy rollouts."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from prep import prepare


class Identifier(nn.Module):
    def __init__(self, steps, hidden=128):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 32, 7, padding=3), nn.GELU(),
                                  nn.Conv1d(32, 32, 7, stride=2, padding=3), nn.GELU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * ((steps + 1) // 2), hidden),
                                  nn.GELU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.head(self.conv(x.unsqueeze(1)))


def report_hardest(model, x, y, rank, world):
    """Compares the worst validation samples of the first and the last worker."""
    if rank not in (0, world - 1):
        return
    model.eval()
    with torch.no_grad():
        err = (model(x) - y).pow(2).sum(1)
    model.train()
    worst = torch.cat([err.max().view(1), y[err.argmax()]])
    if rank == world - 1:
        dist.send(worst, dst=0)
    elif rank == 0:
        other = torch.empty(3)
        dist.recv(other, src=world - 1)
        pick = max(worst, other, key=lambda t: t[0].item())
        print(f"  hardest: error {pick[0]:.3f} at freq {pick[1]:.2f} damp {pick[2]:.2f}", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=100)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--data", default="rollouts")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("prep", dist.distributed_c10d._get_default_store())
    data = prepare(args.data, store, rank)
    x, y = data["traj"], data["params"]
    mean, std = x.mean(), x.std()
    x = (x - mean) / std
    n_val = len(x) // 10
    perm = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    val, train = perm[:n_val], TensorDataset(x[perm[n_val:]], y[perm[n_val:]])

    torch.manual_seed(0)
    model = DDP(Identifier(x.size(1)))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    mine = val[rank::world]
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for bx, by in loader:
            loss = F.mse_loss(model(bx), by)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} mse {total[0] / total[1]:.4f}", flush=True)
        report_hardest(model.module, x[mine], y[mine], rank, world)
        if rank == 0:
            torch.save(model.module.state_dict(), "identifier.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
