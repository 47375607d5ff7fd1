"""GRPO on a toy successor task, FSDP2 actor, dynamic micro-batching by token budget."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from actor import GRPOActor, Policy
from rollout import Rollout, generate, group_advantage, reward_fn


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=36)
    ap.add_argument("--prompts", type=int, default=3)
    ap.add_argument("--group", type=int, default=4)
    ap.add_argument("--prompt-len", type=int, default=6)
    ap.add_argument("--max-new", type=int, default=10)
    ap.add_argument("--max-token-len", type=int, default=168)
    ap.add_argument("--vocab", type=int, default=24)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--clip", type=float, default=0.2)
    ap.add_argument("--seed", type=int, default=0)
    cfg = ap.parse_args()
    cfg.eos, cfg.pad = 0, 0

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))

    torch.manual_seed(cfg.seed)
    model = Policy(cfg.vocab, cfg.dim)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    actor = GRPOActor(model, optimizer, cfg, mesh.get_group("dp"))

    gen = torch.Generator().manual_seed(100 + rank)
    t0 = time.time()
    for it in range(cfg.iters):
        base = torch.randint(1, cfg.vocab - cfg.max_new, (cfg.prompts, 1), generator=gen)
        prompts = (base + torch.arange(cfg.prompt_len)) % cfg.vocab
        prompts = prompts.repeat_interleave(cfg.group, 0)
        seqs = generate(model, prompts, cfg.max_new, cfg.eos, gen)
        rollouts = [Rollout(s, cfg.prompt_len, reward_fn(s, cfg.prompt_len, cfg.eos)) for s in seqs]
        group_advantage(rollouts, cfg.group)
        actor.compute_log_prob(rollouts)
        loss, norm, num = actor.update_policy(rollouts)
        stat = torch.tensor([sum(r.reward for r in rollouts) / len(rollouts),
                             sum(len(r.tokens) for r in rollouts) / len(rollouts)])
        dist.all_reduce(stat)
        if it % 2 == 0:
            logging.info("iter %d reward %.3f mean_len %.1f micro %d loss %.4f gnorm %.3f %.1fs", it,
                         stat[0] / world, stat[1] / world, num, loss, norm, time.time() - t0)
    dist.barrier()
    logging.info("finished in %.1fs", time.time() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
