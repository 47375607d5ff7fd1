import dataclasses

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@dataclasses.dataclass
class Config:
    generations: int = 30
    pairs_per_rank: int = 8
    sigma: float = 0.08
    lr: float = 0.06
    weight_decay: float = 0.005


class Cartesian:
    """A point mass that has to brake at the origin."""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def episode(self, policy):
        pos = torch.from_numpy(self.rng.randn(2).astype("float32"))
        vel = torch.zeros(2)
        total = 0.0
        for _ in range(25):
            act = torch.tanh(policy(torch.cat([pos, vel])))
            vel = 0.9 * vel + 0.2 * act
            pos = pos + 0.3 * vel
            total -= float(pos.norm() + 0.05 * act.norm())
        return total


def centered_ranks(x):
    order = x.argsort().argsort().float()
    return order / (len(x) - 1) - 0.5


@torch.no_grad()
def main(cfg=Config()):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    theta = parameters_to_vector(policy.parameters()).clone()
    noise = torch.Generator().manual_seed(9000 + rank)
    env = Cartesian(seed=rank)

    for gen in range(cfg.generations):
        seeds = torch.randint(0, 2 ** 31, (cfg.pairs_per_rank,), generator=noise)
        rets = torch.zeros(cfg.pairs_per_rank, 2)
        for i, s in enumerate(seeds.tolist()):
            eps = torch.randn(theta.shape, generator=torch.Generator().manual_seed(s))
            for j, sign in enumerate((1.0, -1.0)):
                vector_to_parameters(theta + sign * cfg.sigma * eps, policy.parameters())
                rets[i, j] = env.episode(policy)
        all_seeds = [torch.empty_like(seeds) for _ in range(world)]
        all_rets = [torch.empty_like(rets) for _ in range(world)]
        dist.all_gather(all_seeds, seeds)
        dist.all_gather(all_rets, rets)
        seeds_, rets_ = torch.cat(all_seeds), torch.cat(all_rets)
        w = centered_ranks(rets_.flatten()).view_as(rets_)
        grad = torch.zeros_like(theta)
        for s, (a, b) in zip(seeds_.tolist(), w.tolist()):
            grad += (a - b) * torch.randn(theta.shape, generator=torch.Generator().manual_seed(s))
        grad /= 2 * len(seeds_) * cfg.sigma
        theta += cfg.lr * (grad - cfg.weight_decay * theta)
        if rank == 0 and gen % 6 == 0:
            print(f"gen {gen} mean return {rets_.mean():.2f} best {rets_.max():.2f}", flush=True)
    vector_to_parameters(theta, policy.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
