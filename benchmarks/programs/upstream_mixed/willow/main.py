"""Group-relative policy optimisation of a small policy; each process samples some answers of every group."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from prompts import GroupSampler, Prompts

ANSWERS, ACTIONS = 4, 6


def reward(prompt, action):
    return (action == prompt[:, None, :ACTIONS].argmax(-1)).float()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(19)
    model = DDP(nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, ACTIONS)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    dataset = Prompts()
    sampler = GroupSampler(dataset, seed=2)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    sampling = torch.Generator().manual_seed(1900 + rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        score = 0.0
        for prompt in loader:
            logp = torch.log_softmax(model(prompt), dim=-1)
            action = torch.multinomial(logp.detach().exp(), ANSWERS, replacement=True, generator=sampling)
            own = reward(prompt, action)
            everyone = [torch.empty_like(own) for _ in range(world)]
            dist.all_gather(everyone, own)
            group = torch.cat(everyone, dim=1)
            advantage = (own - group.mean(1, keepdim=True)) / (group.std(1, keepdim=True) + 1e-4)
            loss = -(advantage * logp.gather(1, action)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            score += group.mean().item()
        if rank == 0:
            print(f"epoch {epoch} reward {score / len(loader):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
