import argparse
import logging
from datetime import timedelta

import torch
import torch.distributed as dist

from actors import Policy, pack, run_evaluator, run_generator, run_trainer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--refresh", type=int, default=4)
    ap.add_argument("--eval-every", type=int, default=80)
    ap.add_argument("--eval-seconds", type=float, default=1.2)
    ap.add_argument("--lr", type=float, default=2e-3)
    cfg = ap.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world >= 3, "trainers, one generator, one evaluator"
    cfg.trainers, cfg.generator, cfg.evaluator = list(range(world - 2)), world - 2, world - 1
    role = "trainer" if rank in cfg.trainers else "generator" if rank == cfg.generator else "evaluator"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {role}{rank} %(message)s")
    torch.manual_seed(0)
    group = dist.new_group(cfg.trainers)

    if role == "trainer":
        weights = run_trainer(cfg, group)
    elif role == "generator":
        weights = run_generator(cfg)
    else:
        weights, scores = run_evaluator(cfg)
        logging.info("scores %s", [round(s, 4) for s in scores])
    dist.barrier()
    same = [torch.empty_like(weights) for _ in range(world)]
    dist.all_gather(same, weights)
    if rank == 0:
        logging.info("distance of every role's copy to trainer 0: %s", [(w - weights).abs().max().item() for w in same])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
