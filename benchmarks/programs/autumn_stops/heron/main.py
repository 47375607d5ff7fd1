import argparse
import logging
import time

import torch
import torch.distributed as dist

from engine import PipelineEngine
from stages import build_stage

log = logging.getLogger("pipe")

CONFIG = {
    "vocab": 512,
    "seq": 24,
    "dim": 96,
    "depth": 2,
    "classes": 8,
    "micro_batch": 8,
    "num_micro": 4,
    "lr": 5e-4,
    "ref_weight": 0.1,
    "seed": 17,
}


class TokenStream:
    """Identical on all stages: the seed depends on the step only."""

    def __init__(self, cfg):
        self.cfg = cfg

    def micro_batches(self, step):
        gen = torch.Generator().manual_seed(1000 + step)
        c = self.cfg
        for _ in range(c["num_micro"]):
            labels = torch.randint(0, c["classes"], (c["micro_batch"],), generator=gen)
            low = labels * (c["vocab"] // c["classes"])
            tokens = low[:, None] + torch.randint(0, c["vocab"] // c["classes"], (c["micro_batch"], c["seq"]), generator=gen)
            noise = torch.randint(0, c["vocab"], tokens.shape, generator=gen)
            mask = torch.rand(tokens.shape, generator=gen) < 0.5
            yield torch.where(mask, noise, tokens), labels


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=110)
    p.add_argument("--reference-after", type=int, default=60, help="step from which the head is regularised")
    p.add_argument("--log-every", type=int, default=20)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s stage{rank} %(message)s")
    stage = build_stage(rank, dist.get_world_size(), CONFIG)
    engine = PipelineEngine(stage, CONFIG)
    stream = TokenStream(CONFIG)

    start = time.time()
    for step in range(args.steps):
        loss = engine.train_batch(stream.micro_batches(step), with_reference=step >= args.reference_after)
        if engine.is_last and step % args.log_every == 0:
            log.info("step %d loss %.4f (%.1fs)", step, loss, time.time() - start)

    dist.barrier()
    if engine.is_last:
        log.info("done after %.1fs", time.time() - start)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
