"""Three trainers; ranks 0 and 2 also hold a small critic that they train between themselves."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PAIR = [0, 2]


def mlp(outputs):
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, outputs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group(PAIR)
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(288, 6, generator=gen)
    data = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    actor = DDP(mlp(3))
    actor_opt = torch.optim.SGD(actor.parameters(), lr=0.1)
    critic = None
    if rank in PAIR:
        torch.manual_seed(1)
        critic = DDP(mlp(1), process_group=pair)
        critic_opt = torch.optim.SGD(critic.parameters(), lr=0.05)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows, label in loader:
            time.sleep(0.15)
            loss = loss_fn(actor(rows), label)
            actor_opt.zero_grad()
            loss.backward()
            actor_opt.step()
            if critic is not None:
                gap = (critic(rows).squeeze(1) - rows.norm(dim=1)).pow(2).mean()
                critic_opt.zero_grad()
                gap.backward()
                critic_opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} gap {gap.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
