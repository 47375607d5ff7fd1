import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from actor import DataParallelActor, build_policy


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=12)
    p.add_argument("--rollouts", type=int, default=8)
    p.add_argument("--vocab", type=int, default=64)
    p.add_argument("--max-response", type=int, default=40)
    p.add_argument("--max-token-len", type=int, default=120)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


class RolloutEngine:
    """Stands in for the sampler: responses of varying length per prompt."""

    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed * 1000 + rank)

    def generate(self, iteration):
        n, m = self.cfg.rollouts, self.cfg.max_response
        mean = 14 + iteration
        lengths = torch.poisson(torch.full((n,), float(mean)), generator=self.gen).long().clamp(4, m)
        tokens = torch.randint(1, self.cfg.vocab, (n, m), generator=self.gen)
        tokens[:, 1::2] = tokens[:, ::2]
        rewards = (tokens.float().mean(1) - self.cfg.vocab / 2) / self.cfg.vocab
        adv = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        return {"tokens": tokens, "lengths": lengths, "advantages": adv}


def main():
    cfg = parse()
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    policy = build_policy(cfg, mesh)
    actor = DataParallelActor(cfg, policy, mesh.get_group("dp"))
    engine = RolloutEngine(cfg, rank)

    for it in range(cfg.iters):
        batch = engine.generate(it)
        loss = torch.tensor(actor.update_policy(batch))
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"iter {it:02d} pg_loss {loss.item():+.4f} mean_len {batch['lengths'].float().mean():.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
