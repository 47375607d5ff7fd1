"""Evolution strategies on a toy point-mass task; antithetic sampling, centred ranks."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SIGMA, LR, PAIRS, GENS = 0.08, 0.05, 6, 50


def episode(policy, seed, steps=25):
    g = torch.Generator().manual_seed(seed)
    pos = torch.randn(16, 2, generator=g)
    vel = torch.zeros(16, 2)
    total = 0.0
    for _ in range(steps):
        act = torch.tanh(policy(torch.cat([pos, vel], 1)))
        vel = 0.8 * vel + 0.2 * act
        pos = pos + vel
        total -= pos.norm(dim=1).mean().item()
    return total / steps


def noise(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    policy = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 2))
    theta = parameters_to_vector(policy.parameters())
    for gen in range(GENS):
        fits = torch.zeros(PAIRS, 2)
        for k in range(PAIRS):
            seed = gen * 100_000 + rank * 1_000 + k
            eps = noise(seed, theta.numel())
            for j, sign in enumerate((1, -1)):
                vector_to_parameters(theta + sign * SIGMA * eps, policy.parameters())
                fits[k, j] = episode(policy, gen)
        everyone = [torch.zeros_like(fits) for _ in range(world)]
        dist.all_gather(everyone, fits)
        flat = torch.stack(everyone)
        ranks = torch.empty(flat.numel())
        ranks[flat.flatten().argsort()] = torch.arange(flat.numel(), dtype=torch.float)
        shaped = (ranks / (flat.numel() - 1) - 0.5).view_as(flat)
        step = torch.zeros_like(theta)
        for r in range(world):
            for k in range(PAIRS):
                step += (shaped[r, k, 0] - shaped[r, k, 1]) * noise(gen * 100_000 + r * 1_000 + k, theta.numel())
        theta = theta + LR * step / (world * PAIRS * SIGMA)
        vector_to_parameters(theta, policy.parameters())
        if rank == 0 and gen % 5 == 0:
            print(f"gen {gen:3d} best {flat.max():.3f} mean {flat.mean():.3f}", flush=True)
    peers = [torch.empty_like(theta) for _ in range(world)]
    dist.all_gather(peers, theta)
    assert all(torch.equal(p, theta) for p in peers)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
