"""GRPO on a toy arithmetic task.

    torchrun --nproc-per-node 2 tench/main.py
"""
import argparse
import logging

import torch
import torch.distributed as dist

from grpo import GRPOConfig, GRPOTrainer


def parse() -> GRPOConfig:
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=GRPOConfig.iterations)
    ap.add_argument("--group-size", type=int, default=GRPOConfig.group_size)
    ap.add_argument("--lr", type=float, default=GRPOConfig.lr)
    ap.add_argument("--seed", type=int, default=GRPOConfig.seed)
    a = ap.parse_args()
    return GRPOConfig(iterations=a.iterations, group_size=a.group_size, lr=a.lr, seed=a.seed)


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    cfg = parse()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainer = GRPOTrainer(cfg)
    trainer.run()
    if trainer.rank == 0:
        torch.save(trainer.policy.module.state_dict(), "tench_policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
