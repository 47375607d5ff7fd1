"""SFT on packed chat samples, gradients reduced in flat buckets.

    torchrun --nproc-per-node 3 chub/main.py
"""
import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import PackedLM
from packing import VOCAB, PackedLoader, synth_samples

log = logging.getLogger("sft-pack")


@dataclass
class Config:
    samples: int = 150
    budget: int = 64
    batch: int = 1
    epochs: int = 3
    lr: float = 4e-3
    clip: float = 1.0
    seed: int = 5
    log_every: int = 5


class BucketReducer:
    """Averages gradients over the group, weighting tokens equally."""

    def __init__(self, params, cap: int = 50_000):
        self.buckets, cur, size = [], [], 0
        for p in params:
            cur.append(p)
            size += p.numel()
            if size >= cap:
                self.buckets.append(cur)
                cur, size = [], 0
        if cur:
            self.buckets.append(cur)

    def reduce(self):
        work = []
        for bucket in self.buckets:
            flat = torch.cat([p.grad.flatten() for p in bucket])
            work.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        for handle, flat, bucket in work:
            handle.wait()
            for p, g in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(g.view_as(p))


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = PackedLM(VOCAB, cfg.budget)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.reducer = BucketReducer(list(self.model.parameters()))
        data = synth_samples(cfg.samples, cfg.seed)
        self.loader = PackedLoader(data, cfg.budget, cfg.batch, self.rank, self.world, cfg.seed)
        self.step = 0

    def train_step(self, pack) -> tuple[float, int]:
        logits = self.model(pack.ids, pack.pos, pack.doc)
        labels = pack.labels[:, 1:].reshape(-1)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels, ignore_index=-100, reduction="sum")
        count = (labels != -100).sum()
        total = count.clone()
        dist.all_reduce(total)
        self.opt.zero_grad(set_to_none=True)
        (loss / total.clamp(min=1)).backward()
        self.reducer.reduce()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.opt.step()
        self.step += 1
        return loss.item(), int(count)

    def run_epoch(self, epoch: int):
        self.loader.set_epoch(epoch)
        sums, t0 = torch.zeros(2, dtype=torch.float64), time.perf_counter()
        for i, pack in enumerate(self.loader):
            loss, n = self.train_step(pack)
            sums += torch.tensor([loss, float(n)], dtype=torch.float64)
            if self.rank == 0 and i % self.cfg.log_every == 0:
                log.info("epoch %d step %d loss/token %.4f", epoch, self.step, loss / max(n, 1))
        gathered = [torch.zeros_like(sums) for _ in range(self.world)]
        dist.all_gather(gathered, sums)
        loss, tokens = torch.stack(gathered).sum(0).tolist()
        if self.rank == 0:
            log.info("epoch %d done: loss %.4f, %d target tokens, %.1fs",
                     epoch, loss / tokens, tokens, time.perf_counter() - t0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--budget", type=int, default=Config.budget)
    ap.add_argument("--seed", type=int, default=Config.seed)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(Config(epochs=a.epochs, budget=a.budget, seed=a.seed))
    for epoch in range(trainer.cfg.epochs):
        trainer.run_epoch(epoch)
    if trainer.rank == 0:
        torch.save(trainer.model.state_dict(), "chub_model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
