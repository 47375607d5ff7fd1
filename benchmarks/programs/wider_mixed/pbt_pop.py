import copy
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Trial:
    def __init__(self, rank):
        self.rng = random.Random(rank)
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
        self.hp = {"lr": 10 ** self.rng.uniform(-3.5, -0.3), "wd": 10 ** self.rng.uniform(-5, -2)}
        self.opt = None
        self.rebuild()

    def rebuild(self):
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.hp["lr"], weight_decay=self.hp["wd"])

    def train(self, steps, gen):
        for _ in range(steps):
            x = torch.randn(32, 6, generator=gen)
            loss = nn.functional.cross_entropy(self.net(x), target(x))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean()

    def perturb(self):
        self.hp = {k: v * self.rng.choice([0.8, 1.25]) for k, v in self.hp.items()}
        self.rebuild()


def target(x):
    return (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] > 0).long()


def exploit(trial, scores, infos):
    rank = dist.get_rank()
    order = sorted(range(len(scores)), key=lambda r: scores[r])
    loser, winner = order[0], order[-1]
    if scores[winner] - scores[loser] < 0.02:
        return False
    if rank == winner:
        dist.send(parameters_to_vector(trial.net.parameters()).detach(), dst=loser)
    elif rank == loser:
        flat = parameters_to_vector(trial.net.parameters()).detach().clone()
        dist.recv(flat, src=winner)
        vector_to_parameters(flat, trial.net.parameters())
        trial.hp = copy.deepcopy(infos[winner])
        trial.perturb()
    return True


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trial = Trial(rank)
    gen = torch.Generator().manual_seed(70 + rank)
    gv = torch.Generator().manual_seed(1)
    xv = torch.randn(256, 6, generator=gv)
    yv = target(xv)
    for gen_no in range(8):
        trial.train(25 + 5 * rank, gen)
        s = trial.score(xv, yv).view(1)
        allsc = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(allsc, s)
        infos = [None] * world
        dist.all_gather_object(infos, trial.hp)
        moved = exploit(trial, [float(v) for v in allsc], infos)
        if rank == 0:
            print(f"generation {gen_no} scores {[round(float(v), 2) for v in allsc]} copied {moved}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
