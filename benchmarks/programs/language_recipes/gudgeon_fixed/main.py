"""DPO with LoRA adapters and trainable embeddings.

    torchrun --nproc-per-node 2 gudgeon/main.py
"""
import argparse
import copy
import logging
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from modeling import add_chat_tokens, attach_lora, load_pretrained, sequence_logp
from pairs import PreferencePairs, collate

log = logging.getLogger("dpo")


@dataclass
class DPOConfig:
    pairs: int = 256
    batch: int = 8
    epochs: int = 2
    lr: float = 2e-3
    beta: float = 0.1
    lora_rank: int = 4
    lora_alpha: float = 8.0
    clip: float = 1.0
    seed: int = 100
    out: str = "gudgeon_adapter.pt"


def set_seed(seed: int, rank: int):
    """Different streams on every process for dropout and sampling."""
    random.seed(seed + rank)
    np.random.seed(seed + rank)
    torch.manual_seed(seed + rank)


class DPOTrainer:
    def __init__(self, cfg: DPOConfig):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        set_seed(cfg.seed, self.rank)
        policy = load_pretrained()
        add_chat_tokens(policy)
        for t in policy.state_dict().values():
            dist.broadcast(t, src=0)
        self.ref = copy.deepcopy(policy).eval().requires_grad_(False)
        attach_lora(policy, cfg.lora_rank, cfg.lora_alpha)
        self.policy = DDP(policy)
        trainable = [p for p in policy.parameters() if p.requires_grad]
        if self.rank == 0:
            log.info("trainable %d of %d", sum(p.numel() for p in trainable),
                     sum(p.numel() for p in policy.parameters()))
        self.opt = torch.optim.AdamW(trainable, lr=cfg.lr, weight_decay=0.0)
        ds = PreferencePairs(cfg.pairs, cfg.seed)
        self.sampler = DistributedSampler(ds, self.world, self.rank, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(ds, cfg.batch, sampler=self.sampler, collate_fn=collate, drop_last=True)
        total = cfg.epochs * len(self.loader)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: max(0.05, 1 - s / total))

    def compute(self, ids, mask):
        n = ids.shape[0] // 2
        logp = sequence_logp(self.policy, ids, mask)
        with torch.no_grad():
            ref = sequence_logp(self.ref, ids, mask)
        delta = self.cfg.beta * (logp - ref)
        margin = delta[:n] - delta[n:]
        return -F.logsigmoid(margin).mean(), margin.detach()

    def reduce(self, *vals):
        t = torch.tensor(vals, dtype=torch.float64)
        dist.all_reduce(t)
        return (t / self.world).tolist()

    def train(self):
        step = 0
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for ids, mask in self.loader:
                loss, margin = self.compute(ids, mask)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.cfg.clip)
                self.opt.step()
                self.sched.step()
                if step % 8 == 0:
                    l, acc, m = self.reduce(loss.item(), (margin > 0).float().mean().item(), margin.mean().item())
                    if self.rank == 0:
                        log.info("epoch %d step %d loss %.4f acc %.3f margin %.4f", epoch, step, l, acc, m)
                step += 1

    def save(self):
        if self.rank == 0:
            state = {k: v for k, v in self.policy.module.state_dict().items()
                     if k.endswith((".a", ".b")) or "wte" in k}
            torch.save(state, self.cfg.out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--beta", type=float, default=DPOConfig.beta)
    ap.add_argument("--epochs", type=int, default=DPOConfig.epochs)
    ap.add_argument("--seed", type=int, default=DPOConfig.seed)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = DPOTrainer(DPOConfig(beta=a.beta, epochs=a.epochs, seed=a.seed))
    t.train()
    t.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
