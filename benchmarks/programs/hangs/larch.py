"""An evaluation pair finishes early and leaves; the training pair goes on."""
import argparse
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Team:
    def __init__(self, name, ranks, group):
        self.name, self.ranks, self.group = name, ranks, group


def form_teams(world):
    half = world // 2
    layout = {"train": list(range(half)), "evaluate": list(range(half, world))}
    teams = [Team(name, ranks, dist.new_group(ranks)) for name, ranks in layout.items()]
    return next(team for team in teams if dist.get_rank() in team.ranks)


def network():
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(9, 27), nn.ReLU(), nn.Linear(27, 3))


def evaluate_baseline(team, batches):
    model = network()
    correct = torch.zeros(2)
    with torch.no_grad():
        for number in range(batches):
            gen = torch.Generator().manual_seed(number * 11 + dist.get_rank())
            x = torch.randn(50, 9, generator=gen)
            correct += torch.tensor([float((model(x).argmax(1) == x[:, :3].argmax(1)).sum()), 50.0])
    dist.all_reduce(correct, group=team.group)
    if dist.get_rank() == team.ranks[0]:
        print(f"baseline accuracy {correct[0] / correct[1]:.3f}", flush=True)


def train(team, steps, pace):
    model = DistributedDataParallel(network(), process_group=team.group)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        gen = torch.Generator().manual_seed(step * 5 + dist.get_rank())
        x = torch.randn(32, 9, generator=gen)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()
        opt.step()
        time.sleep(pace)
    dist.barrier(group=team.group)
    if dist.get_rank() == team.ranks[0]:
        print(f"trained, loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--pace", type=float, default=0.03)
    parser.add_argument("--batches", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    team = form_teams(dist.get_world_size())
    if team.name == "evaluate":
        evaluate_baseline(team, args.batches)
        dist.destroy_process_group()
        sys.exit(0)
    train(team, args.steps, args.pace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
