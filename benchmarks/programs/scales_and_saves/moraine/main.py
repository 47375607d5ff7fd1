import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import vault


class IceSheet(torch.utils.data.IterableDataset):
    """Noisy height profiles; the target is the next profile of a diffusing sheet."""

    def __init__(self, points, rank, seed):
        self.points, self.seed = points, seed * 31 + rank

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        k = torch.tensor([0.25, 0.5, 0.25]).view(1, 1, 3)
        while True:
            h = torch.randn(self.points, generator=g).cumsum(0) / self.points ** 0.5
            nxt = h
            for _ in range(6):
                nxt = nn.functional.conv1d(nn.functional.pad(nxt.view(1, 1, -1), (1, 1), "replicate"), k).view(-1)
            yield h + 0.05 * torch.randn(self.points, generator=g), nxt


class Flow(nn.Module):
    def __init__(self, points, width, depth):
        super().__init__()
        self.enter = nn.Linear(points, width)
        self.deep = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, points)

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        for layer in self.deep:
            h = h + 0.5 * torch.tanh(layer(h))
        return x + self.leave(h)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--save-every", type=int, default=50)
    ap.add_argument("--points", type=int, default=48)
    ap.add_argument("--width", type=int, default=384)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--vault", default="vault")
    ap.add_argument("--resume", default="")
    return ap.parse_args()


def main():
    a = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(90)
    flow = Flow(a.points, a.width, a.depth)
    first = 0
    if a.resume:
        first, state = vault.load(a.resume)
        flow.load_state_dict(state)
    net = DDP(flow)
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-4, momentum=0.5)
    store = vault.Vault(a.vault) if rank == 0 else None
    stream = iter(torch.utils.data.DataLoader(IceSheet(a.points, rank, 4 + first), batch_size=a.batch))

    smooth = None
    for step in range(first + 1, a.steps + 1):
        noisy, target = next(stream)
        loss = nn.functional.mse_loss(net(noisy), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            shared = loss.detach().clone()
            dist.all_reduce(shared)
            value = shared.item() / world
            smooth = value if smooth is None else 0.8 * smooth + 0.2 * value
            if rank == 0 and step % 40 == 0:
                print(f"step {step:4d} mse {smooth:.5f}", flush=True)
        if store is not None and step % a.save_every == 0:
            store.put(f"flow-{step:05d}.xzt", step, flow.state_dict())
    if store is not None:
        store.wait()
        store.put("flow-final.xzt", a.steps, flow.state_dict())
        store.wait()
        sizes = {f: os.path.getsize(os.path.join(a.vault, f)) for f in sorted(os.listdir(a.vault))}
        print("vault:", sizes)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
