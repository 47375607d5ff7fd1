"""Two teams train on their own, one talks more than the other; now and then all agree."""
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("burnisher")

SETTINGS = dict(
    steps=36,
    merge_every=12,
    batch=16,
    teams=[
        {"ranks": [0, 1], "local_steps": 1, "extra_stats": True},
        {"ranks": [2, 3], "local_steps": 4, "extra_stats": False},
    ],
)


class Team:
    def __init__(self, index, spec, group):
        self.index, self.group = index, group
        self.size = len(spec["ranks"])
        self.local_steps = spec["local_steps"]
        self.extra_stats = spec["extra_stats"]
        self.leader = spec["ranks"][0]

    def mean_(self, tensors):
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat, group=self.group)
        flat /= self.size
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(part.view_as(t))


def my_team(settings):
    group, _ = dist.new_subgroups_by_enumeration([t["ranks"] for t in settings["teams"]])
    for i, spec in enumerate(settings["teams"]):
        if dist.get_rank() in spec["ranks"]:
            return Team(i, spec, group)


@torch.no_grad()
def merge(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100)
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    team = my_team(SETTINGS)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(1000 + rank)
    target = torch.randn(10, 1, generator=torch.Generator().manual_seed(55))
    for step in range(1, SETTINGS["steps"] + 1):
        x = torch.randn(SETTINGS["batch"], 10, generator=gen)
        loss = F.mse_loss(model(x), torch.sin(x @ target))
        opt.zero_grad()
        loss.backward()
        if team.local_steps == 1:
            team.mean_([p.grad for p in model.parameters()])
        opt.step()
        if team.local_steps > 1 and step % team.local_steps == 0:
            with torch.no_grad():
                team.mean_([p.data for p in model.parameters()])
        if team.extra_stats:
            norm = sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt()
            peak = norm.clone()
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=team.group)
        if step % SETTINGS["merge_every"] == 0:
            merge(model)
            if rank == team.leader:
                log.info("step %d team %d loss %.4f", step, team.index, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
