"""Language-model pretraining as a chain of short jobs, each continues the last.

    torchrun --nproc-per-node 2 barbel/main.py
"""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import CheckpointManager
from model import GPT, GPTConfig
from stream import StreamingText

log = logging.getLogger("pretrain")


@dataclass
class Config:
    vocab: int = 64
    seq_len: int = 24
    n_shards: int = 40
    micro_batch: int = 4
    accum: int = 2
    steps: int = 40
    steps_per_job: int = 20
    lr: float = 3e-3
    warmup: int = 5
    seed: int = 42
    save_every: int = 10
    log_every: int = 5
    root: str = "barbel_ckpt"


class Job:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = GPT(GPTConfig(vocab_size=cfg.vocab, block_size=cfg.seq_len))
        self.model = DDP(net)
        self.opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1.0, (s + 1) / cfg.warmup) * max(0.1, 1 - s / cfg.steps))
        self.stream = StreamingText(cfg.n_shards, cfg.seq_len, cfg.vocab, self.rank, self.world, seed=cfg.seed)
        self.ckpt = CheckpointManager(cfg.root)
        self.step = self.ckpt.load_latest(net, self.opt, self.sched, self.stream)
        if self.rank == 0:
            log.info("job starts at step %d", self.step)

    def micro_loss(self):
        _, tokens = self.stream.next_batch(self.cfg.micro_batch)
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, self.cfg.vocab), tokens[:, 1:].reshape(-1))

    def run(self):
        c = self.cfg
        stop = min(c.steps, self.step + c.steps_per_job)
        while self.step < stop:
            self.opt.zero_grad(set_to_none=True)
            total = 0.0
            for i in range(c.accum):
                if i < c.accum - 1:
                    with self.model.no_sync():
                        loss = self.micro_loss() / c.accum
                        loss.backward()
                else:
                    loss = self.micro_loss() / c.accum
                    loss.backward()
                total += loss.item()
            gnorm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.step += 1
            if self.step % c.log_every == 0:
                t = torch.tensor(total)
                dist.all_reduce(t)
                if self.rank == 0:
                    tokens = self.step * c.accum * c.micro_batch * c.seq_len * self.world
                    log.info("step %d loss %.4f gnorm %.3f lr %.2e tokens %d", self.step,
                             t.item() / self.world, gnorm, self.sched.get_last_lr()[0], tokens)
            if self.step % c.save_every == 0:
                self.ckpt.save(self.step, self.model.module, self.opt, self.sched, self.stream)
        return self.step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--steps-per-job", type=int, default=Config.steps_per_job)
    ap.add_argument("--keep-old", action="store_true")
    a = ap.parse_args()
    cfg = Config(steps=a.steps, steps_per_job=a.steps_per_job)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if not a.keep_old:
        CheckpointManager(cfg.root).clear()
    step = 0
    while step < cfg.steps:
        step = Job(cfg).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
