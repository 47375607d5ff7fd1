import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PAIR = [0, 1]


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def teacher_group(rank):
    if rank in PAIR:
        return dist.new_group(PAIR, use_local_synchronization=True)
    return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--inner", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(61)
    data = TensorDataset(torch.randn(4608, 128, generator=g), torch.randn(4608, 16, generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    student = DDP(mlp(128, 512, 512, 16))
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    pair = teacher_group(rank)
    critic = critic_opt = None
    if pair is not None:
        critic = DDP(mlp(16, 256, 1), process_group=pair)
        critic_opt = torch.optim.AdamW(critic.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            out = student(x)
            F.mse_loss(out, y).backward()
            opt.step()
            if critic is not None:
                fake = out.detach()
                for _ in range(args.inner):
                    critic_opt.zero_grad(set_to_none=True)
                    score = critic(torch.cat([y, fake]))
                    label = torch.cat([torch.ones(len(y), 1), torch.zeros(len(fake), 1)])
                    F.binary_cross_entropy_with_logits(score, label).backward()
                    critic_opt.step()
        if pair is not None:
            with torch.no_grad():
                gap = critic.module(y).mean() - critic.module(fake).mean()
            dist.all_reduce(gap, group=pair)
            if rank == 0:
                print(epoch, "gap", round(gap.item() / len(PAIR), 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
