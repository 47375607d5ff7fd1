import copy
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig
from rewards import EOS, PAD, VOCAB, build_prompts, encode, score

log = logging.getLogger("grpo")


@dataclass
class GRPOConfig:
    iterations: int = 12
    prompts_per_iter: int = 6
    group_size: int = 6
    minibatch_groups: int = 2
    max_new_tokens: int = 3
    ppo_epochs: int = 2
    lr: float = 2e-3
    clip_eps: float = 0.2
    kl_coef: float = 0.02
    seed: int = 17
    warm_start_steps: int = 20


@dataclass
class Group:
    tokens: torch.Tensor      # (G, prompt + completion)
    mask: torch.Tensor        # (G, completion)
    old_logp: torch.Tensor    # (G, completion)
    ref_logp: torch.Tensor
    adv: torch.Tensor         # (G,)
    mean_reward: float


def token_logps(logits: torch.Tensor, tokens: torch.Tensor, prompt_len: int) -> torch.Tensor:
    logp = F.log_softmax(logits[:, :-1].float(), dim=-1)
    picked = logp.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return picked[:, prompt_len - 1:]


class GRPOTrainer:
    def __init__(self, cfg: GRPOConfig):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = GPT(GPTConfig(vocab_size=VOCAB, block_size=16))
        self.policy = DDP(net)
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=cfg.lr, weight_decay=0.0)
        self._warm_start()
        self.ref = copy.deepcopy(self.policy.module).eval().requires_grad_(False)
        self.gen = torch.Generator().manual_seed(cfg.seed * 1000 + self.rank)
        self.prompts = build_prompts(cfg.prompts_per_iter * cfg.iterations * self.world, cfg.seed)

    def _warm_start(self):
        """Short supervised phase so that rollouts have some signal."""
        g = torch.Generator().manual_seed(self.cfg.seed + 5)
        for _ in range(self.cfg.warm_start_steps):
            pairs = torch.randint(0, 10, (32, 2), generator=g).tolist()
            pairs = pairs[self.rank::self.world]
            rows = [encode(a, b) + [4 + (a + b) % 10, EOS] for a, b in pairs]
            t = torch.tensor(rows)
            logits = self.policy(t)[:, 3:5]
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), t[:, 4:6].reshape(-1))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def generate(self, prompt: list[int], n: int) -> torch.Tensor:
        net = self.policy.module
        seq = torch.tensor(prompt).repeat(n, 1)
        alive = torch.ones(n, dtype=torch.bool)
        for _ in range(self.cfg.max_new_tokens):
            probs = net(seq)[:, -1].softmax(-1)
            nxt = torch.multinomial(probs, 1, generator=self.gen).squeeze(1)
            nxt = torch.where(alive, nxt, torch.full_like(nxt, PAD))
            seq = torch.cat([seq, nxt[:, None]], dim=1)
            alive &= nxt != EOS
        return seq

    @torch.no_grad()
    def make_experience(self, it: int) -> list[Group]:
        c = self.cfg
        base = it * c.prompts_per_iter * self.world
        mine = self.prompts[base:base + c.prompts_per_iter * self.world][self.rank::self.world]
        groups = []
        for a, b in mine:
            prompt = encode(a, b)
            seq = self.generate(prompt, c.group_size)
            comp = seq[:, len(prompt):]
            rewards = torch.tensor([score(row, a, b) for row in comp])
            ended = (comp == EOS).cumsum(1) - (comp == EOS).long()
            groups.append(Group(
                tokens=seq,
                mask=(ended == 0).float(),
                old_logp=token_logps(self.policy.module(seq), seq, len(prompt)),
                ref_logp=token_logps(self.ref(seq), seq, len(prompt)),
                adv=(rewards - rewards.mean()) / (rewards.std() + 1e-4),
                mean_reward=rewards.mean().item(),
            ))
        return groups

    def loss(self, batch: list[Group]) -> torch.Tensor:
        tokens = torch.cat([g.tokens for g in batch])
        mask = torch.cat([g.mask for g in batch])
        old = torch.cat([g.old_logp for g in batch])
        ref = torch.cat([g.ref_logp for g in batch])
        adv = torch.cat([g.adv for g in batch])[:, None]
        new = token_logps(self.policy(tokens), tokens, 4)
        ratio = (new - old).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(1 - self.cfg.clip_eps, 1 + self.cfg.clip_eps) * adv)
        diff = ref - new
        kl = diff.exp() - diff - 1
        return ((pg + self.cfg.kl_coef * kl) * mask).sum() / mask.sum()

    def update(self, groups: list[Group], it: int) -> float:
        c, total, n = self.cfg, 0.0, 0
        for epoch in range(c.ppo_epochs):
            g = torch.Generator().manual_seed(it * 31 + epoch)
            order = torch.randperm(len(groups), generator=g).tolist()
            for lo in range(0, len(order), c.minibatch_groups):
                batch = [groups[i] for i in order[lo:lo + c.minibatch_groups]]
                loss = self.loss(batch)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self.opt.step()
                total, n = total + loss.item(), n + 1
        return total / max(n, 1)

    def run(self):
        for it in range(self.cfg.iterations):
            t0 = time.perf_counter()
            groups = self.make_experience(it)
            loss = self.update(groups, it)
            rewards = [g.mean_reward for g in groups]
            everyone = [None] * self.world
            dist.all_gather_object(everyone, rewards)
            flat = [r for part in everyone for r in part]
            if self.rank == 0:
                log.info("iter %d reward %.3f loss %.4f (%.2fs)", it,
                         sum(flat) / max(len(flat), 1), loss, time.perf_counter() - t0)
