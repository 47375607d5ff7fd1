"""Multi-task net with learned task uncertainties."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("multitask")


class TaskWeights(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses):
        losses = torch.stack(losses)
        return (torch.exp(-self.log_var) * losses + 0.5 * self.log_var).sum()

    def average_gradients(self):
        for p in self.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.depth = nn.Linear(width, 1)
        self.label = nn.Linear(width, 4)
        self.pose = nn.Linear(width, 3)

    def forward(self, x):
        h = self.trunk(x)
        return self.depth(h).squeeze(-1), self.label(h), self.pose(h)


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    depth = 5 * torch.sin(x[:, 0]) + torch.randn(n, generator=g)
    label = (x[:, 1:5] + 0.3 * torch.randn(n, 4, generator=g)).argmax(1)
    pose = 0.2 * torch.tanh(x[:, 5:8]) + 0.02 * torch.randn(n, 3, generator=g)
    return TensorDataset(x, depth, label, pose)


def task_losses(out, depth, label, pose):
    return [F.mse_loss(out[0], depth), F.cross_entropy(out[1], label), F.mse_loss(out[2], pose)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--weights-lr", type=float, default=1e-2)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(19)
    model = DDP(Net())
    weights = TaskWeights(3)
    data = scenes(1280, 1)
    sampler = DistributedSampler(data, seed=19, drop_last=True)
    loader = DataLoader(data, a.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam([{"params": model.parameters()}, {"params": weights.parameters(), "lr": a.weights_lr}], lr=a.lr)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(3)
        for x, *targets in loader:
            losses = task_losses(model(x), *targets)
            opt.zero_grad()
            weights(losses).backward()
            weights.average_gradients()
            opt.step()
            tally += torch.stack(losses).detach()
        dist.all_reduce(tally)
        tally /= len(loader) * dist.get_world_size()
        log.info("epoch %d losses %s log_var %s", epoch, [round(v, 3) for v in tally.tolist()],
                 [round(v, 3) for v in weights.log_var.tolist()])
    if rank == 0:
        os.makedirs("out_balaton", exist_ok=True)
        torch.save({"net": model.module.state_dict(), "weights": weights.state_dict()}, "out_balaton/last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
