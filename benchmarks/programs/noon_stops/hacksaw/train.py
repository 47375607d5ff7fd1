import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from membership import Membership


class Regressor(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1))

    def forward(self, x):
        return self.net(x)


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    return TensorDataset(x, torch.sin(x[:, :4].sum(1, keepdim=True)) + 0.3 * x[:, 4:5] ** 2)


def train(model, opt_state, epochs, first_epoch, data, batch):
    sampler = DistributedSampler(data, seed=9)
    loader = DataLoader(data, batch // dist.get_world_size(), sampler=sampler, drop_last=True)
    ddp = DDP(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    if opt_state is not None:
        opt.load_state_dict(opt_state)
    for epoch in range(first_epoch, first_epoch + epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(ddp(x), y)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} world {dist.get_world_size()} loss {loss.item():.4f}", flush=True)
    return opt.state_dict()


@torch.no_grad()
def audit(path, data):
    model = Regressor()
    model.load_state_dict(torch.load(path))
    model.eval()
    x, y = data.tensors
    worst = 0.0
    for start in range(0, len(x), 256):
        err = (model(x[start:start + 256]) - y[start:start + 256]).abs()
        worst = max(worst, err.max().item())
    return worst


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--full-epochs", type=int, default=4)
    p.add_argument("--part-epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=384)
    args = p.parse_args()
    world = int(os.environ["WORLD_SIZE"])
    path = os.path.join(tempfile.gettempdir(), f"reg-{os.environ['MASTER_PORT']}.pt")
    data, audit_data = table(12288, 1), table(65536, 2)
    jobs = Membership()
    torch.manual_seed(0)
    model = Regressor()

    jobs.enter(list(range(world)))
    state = train(model, None, args.full_epochs, 0, data, args.batch)
    if jobs.me == 0:
        torch.save(model.state_dict(), path)
    jobs.leave()

    if jobs.enter(list(range(world - 1))):
        train(model, state, args.part_epochs, args.full_epochs, data, args.batch)
        jobs.leave()
        if jobs.me == 0:
            print("audit of the first part", jobs.await_key("audit"), flush=True)
            os.remove(path)
            jobs.announce("over", "1")
    else:
        jobs.announce("audit", f"worst error {audit(path, audit_data):.3f}")
    jobs.await_key("over")


if __name__ == "__main__":
    main()
