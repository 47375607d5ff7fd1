"""PPO fine-tuning of a tiny LM with an adaptive KL penalty.

    torchrun --nproc-per-node 2 burbot/main.py
"""
import argparse
import copy
import logging
import resource
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ppo import ActorCritic, AdaptiveKL, gae, gather_logp

log = logging.getLogger("ppo")


@dataclass
class PPOConfig:
    vocab: int = 64
    prompt_len: int = 8
    new_tokens: int = 8
    rollout_batch: int = 32
    minibatch: int = 16
    epochs: int = 1
    iterations: int = 24
    lr: float = 1e-3
    gamma: float = 1.0
    lam: float = 0.95
    clip: float = 0.2
    vf_coef: float = 0.1
    init_kl: float = 0.05
    target_kl: float = 0.5
    seed: int = 9


class PPO:
    def __init__(self, cfg: PPOConfig):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        net = ActorCritic(cfg.vocab, cfg.prompt_len + cfg.new_tokens)
        self.ref = copy.deepcopy(net).eval().requires_grad_(False)
        self.policy = DDP(net)
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=cfg.lr)
        self.kl_ctl = AdaptiveKL(cfg.init_kl, cfg.target_kl)
        self.gen = torch.Generator().manual_seed(cfg.seed * 77 + self.rank)

    @torch.no_grad()
    def sample(self):
        c, net = self.cfg, self.policy.module
        ids = torch.randint(0, c.vocab, (c.rollout_batch, c.prompt_len), generator=self.gen)
        for _ in range(c.new_tokens):
            logits, _ = net(ids)
            nxt = torch.multinomial(logits[:, -1].softmax(-1), 1, generator=self.gen)
            ids = torch.cat([ids, nxt], 1)
        return ids

    def score(self, ids):
        """One point for every generated token that is larger than its predecessor."""
        gen = ids[:, self.cfg.prompt_len - 1:]
        return (gen[:, 1:] > gen[:, :-1]).float().sum(1) / self.cfg.new_tokens

    def rollout(self):
        c, net = self.cfg, self.policy.module
        ids = self.sample()
        cut = c.prompt_len - 1
        logits, values = net(ids)
        logp = gather_logp(logits, ids)[:, cut:]
        values = values[:, cut:-1]
        with torch.no_grad():
            ref_logp = gather_logp(self.ref(ids)[0], ids)[:, cut:]
        kl = logp - ref_logp
        self.kl_ctl.observe(kl.detach().sum(1).mean())
        score = self.score(ids)
        rewards = -self.kl_ctl.coef * kl.detach()
        rewards[:, -1] += score
        adv, ret = gae(rewards, values.detach(), c.gamma, c.lam)
        stats = torch.stack([adv.sum(), adv.pow(2).sum(), torch.tensor(float(adv.numel()))])
        dist.all_reduce(stats)
        mean = stats[0] / stats[2]
        std = (stats[1] / stats[2] - mean ** 2).clamp(min=1e-8).sqrt()
        return {"ids": ids, "logp": logp.detach(), "adv": (adv - mean) / std, "ret": ret,
                "score": score.mean()}

    def update(self, exp):
        c = self.cfg
        cut = c.prompt_len - 1
        for _ in range(c.epochs):
            order = torch.randperm(c.rollout_batch, generator=self.gen)
            for idx in order.split(c.minibatch):
                ids = exp["ids"][idx]
                logits, values = self.policy(ids)
                logp = gather_logp(logits, ids)[:, cut:]
                ratio = (logp - exp["logp"][idx]).exp()
                adv = exp["adv"][idx]
                pg = -torch.min(ratio * adv, ratio.clamp(1 - c.clip, 1 + c.clip) * adv).mean()
                vf = F.mse_loss(values[:, cut:-1], exp["ret"][idx])
                self.opt.zero_grad(set_to_none=True)
                (pg + c.vf_coef * vf).backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self.opt.step()
        return pg.item(), vf.item()

    def train(self):
        for it in range(self.cfg.iterations):
            exp = self.rollout()
            pg, vf = self.update(exp)
            kl = self.kl_ctl.adjust()
            t = torch.tensor([float(exp["score"]), kl, self.kl_ctl.coef])
            dist.all_reduce(t)
            t /= self.world
            self.kl_ctl.coef = t[2].item()
            if self.rank == 0 and it % 3 == 0:
                rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                log.info("iter %2d score %.3f kl %.3f coef %.4f pg %.4f vf %.4f peak %.0f MiB",
                         it, t[0], t[1], t[2], pg, vf, rss)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=PPOConfig.iterations)
    ap.add_argument("--lr", type=float, default=PPOConfig.lr)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ppo = PPO(PPOConfig(iterations=a.iterations, lr=a.lr))
    ppo.train()
    if ppo.rank == 0:
        torch.save(ppo.policy.module.state_dict(), "burbot_policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
