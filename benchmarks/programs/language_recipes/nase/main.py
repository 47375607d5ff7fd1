"""GRPO where each group is spread over the ranks.

    torchrun --nproc-per-node 2 nase/main.py

All ranks work on the same prompts; every rank draws ``per_rank`` completions of each,
so a group has world * per_rank members. Rewards are gathered before the advantages
are computed, and all decisions about a group are taken on the gathered values.
"""
import argparse
import copy
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

log = logging.getLogger("grpo")
PAD, EOS, VOCAB = 0, 1, 32


@dataclass
class Config:
    iterations: int = 10
    prompts: int = 6
    repeats: int = 2
    per_rank: int = 3
    prompt_len: int = 3
    new_tokens: int = 5
    inner_epochs: int = 1
    lr: float = 2e-3
    clip_eps: float = 0.2
    kl_coef: float = 0.01
    seed: int = 404


class RepeatSampler:
    """The same prompts for all ranks; a batch of prompts is used ``repeats`` times in a row."""

    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def __iter__(self):
        while True:
            batch = torch.randint(2, VOCAB, (self.cfg.prompts, self.cfg.prompt_len), generator=self.gen)
            for _ in range(self.cfg.repeats):
                yield batch


def rewards_of(seq: torch.Tensor, prompt_len: int) -> torch.Tensor:
    """Half for stopping, half for the share of even tokens."""
    comp = seq[:, prompt_len:]
    valid = comp > EOS
    even = ((comp % 2 == 0) & valid).sum(1) / valid.sum(1).clamp(min=1)
    return 0.5 * (comp == EOS).any(1).float() + 0.5 * even


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = GPT(GPTConfig(vocab_size=VOCAB, block_size=cfg.prompt_len + cfg.new_tokens, n_embd=48))
        self.ref = copy.deepcopy(net).eval().requires_grad_(False)
        self.policy = DDP(net)
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.prompts = iter(RepeatSampler(cfg))
        self.gen = torch.Generator().manual_seed(cfg.seed + 1 + self.rank)

    @torch.no_grad()
    def generate(self, prompts):
        seq = prompts.repeat_interleave(self.cfg.per_rank, 0)
        alive = torch.ones(len(seq), dtype=torch.bool)
        for _ in range(self.cfg.new_tokens):
            p = self.policy.module(seq)[:, -1].softmax(-1)
            nxt = torch.multinomial(p, 1, generator=self.gen).squeeze(1)
            nxt = torch.where(alive, nxt, torch.full_like(nxt, PAD))
            seq = torch.cat([seq, nxt[:, None]], 1)
            alive &= nxt != EOS
        return seq

    def logps(self, net, seq):
        lp = F.log_softmax(net(seq[:, :-1]), -1).gather(-1, seq[:, 1:, None]).squeeze(-1)
        return lp[:, self.cfg.prompt_len - 1:]

    def advantages(self, local):
        """local: (prompts, per_rank) -> advantages of the local members and the kept prompts."""
        parts = [torch.empty_like(local) for _ in range(self.world)]
        dist.all_gather(parts, local)
        full = torch.cat(parts, 1)
        std = full.std(1, keepdim=True)
        return (local - full.mean(1, keepdim=True)) / (std + 1e-4), std.squeeze(1) > 1e-6, full.mean().item()

    def experience(self):
        c = self.cfg
        seq = self.generate(next(self.prompts))
        local = rewards_of(seq, c.prompt_len).view(c.prompts, c.per_rank)
        adv, kept, mean = self.advantages(local)
        rows = kept.repeat_interleave(c.per_rank)
        seq, adv = seq[rows], adv.reshape(-1)[rows]
        comp = seq[:, c.prompt_len:]
        before = (comp == EOS).cumsum(1) - (comp == EOS).long()
        with torch.no_grad():
            old, ref = self.logps(self.policy.module, seq), self.logps(self.ref, seq)
        return dict(seq=seq, adv=adv, mask=(before == 0).float(), old=old, ref=ref), mean

    def update(self, e):
        c = self.cfg
        tokens = e["mask"].sum()
        dist.all_reduce(tokens)
        for _ in range(c.inner_epochs):
            new = self.logps(self.policy, e["seq"])
            ratio = (new - e["old"]).exp()
            adv = e["adv"][:, None]
            pg = -torch.min(ratio * adv, ratio.clamp(1 - c.clip_eps, 1 + c.clip_eps) * adv)
            d = e["ref"] - new
            loss = ((pg + c.kl_coef * (d.exp() - d - 1)) * e["mask"]).sum() / tokens * self.world
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.opt.step()
        return loss.item()

    def run(self):
        for it in range(self.cfg.iterations):
            e, mean = self.experience()
            if len(e["seq"]) == 0:
                continue
            loss = self.update(e)
            if self.rank == 0:
                log.info("iter %d reward %.3f rows %d loss %.4f", it, mean, len(e["seq"]), loss)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=Config.iterations)
    ap.add_argument("--repeats", type=int, default=Config.repeats)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = Trainer(Config(iterations=a.iterations, repeats=a.repeats))
    t.run()
    if t.rank == 0:
        torch.save(t.policy.module.state_dict(), "nase_policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
