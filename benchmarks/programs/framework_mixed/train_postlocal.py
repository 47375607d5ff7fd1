import os

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook as post_localSGD
import torch.nn as nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WARMUP_STEPS, PERIOD, EPOCHS = 16, 4, 5


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def build_data():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(960, 20, generator=g)
    y = (x[:, :3] + 0.3 * torch.randn(960, 3, generator=g)).argmax(1)
    return TensorDataset(x, y)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    own = [dist.new_group([r]) for r in range(world)][rank]
    model = DDP(build_model())
    state = post_localSGD.PostLocalSGDState(process_group=None, subgroup=own, start_localSGD_iter=WARMUP_STEPS)
    model.register_comm_hook(state, post_localSGD.post_localSGD_hook)
    opt = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=0.05),
        averager=PeriodicModelAverager(period=PERIOD, warmup_steps=WARMUP_STEPS),
    )
    ds = build_data()
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, 24, sampler=sampler)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        running = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            running += loss.item()
        avg = torch.tensor(running / len(loader))
        dist.all_reduce(avg)
        if rank == 0:
            print(f"epoch {epoch} loss {avg.item() / world:.4f}", flush=True)
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world
    if rank == 0:
        torch.save(model.module.state_dict(), "postlocal.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
