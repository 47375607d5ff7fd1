"""Actor-learner RL: the last rank only generates, the others only learn.

    torchrun --nproc-per-node 3 bleak/main.py

The actor samples completions with the newest weights it was given and hands every
learner its part. Learners form their own DDP group. The actor never has gradients.
"""
import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from net import GPT, GPTConfig

log = logging.getLogger("actor-learner")
VOCAB = 32


@dataclass
class Config:
    rounds: int = 14
    prompts: int = 8
    group: int = 4
    prompt_len: int = 4
    new_tokens: int = 4
    push_every: int = 2
    lr: float = 2e-3
    clip: float = 1.0
    seed: int = 600


class Roles:
    """Every rank creates both groups, in this order, then keeps what it belongs to."""

    def __init__(self):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.actor = world - 1
        self.learners = list(range(world - 1))
        self.learner_group = dist.new_group(self.learners)
        self.push_group = dist.new_group([self.learners[0], self.actor])
        self.is_actor = self.rank == self.actor
        self.is_lead = self.rank == self.learners[0]


def build(cfg: Config) -> GPT:
    torch.manual_seed(cfg.seed)
    return GPT(GPTConfig(vocab_size=VOCAB, block_size=cfg.prompt_len + cfg.new_tokens, n_embd=48))


def push_weights(roles: Roles, net: torch.nn.Module):
    """Lead learner -> actor, one flat tensor."""
    if not (roles.is_lead or roles.is_actor):
        return
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    dist.broadcast(flat, src=roles.learners[0], group=roles.push_group)
    if roles.is_actor:
        off = 0
        for p in net.parameters():
            p.data.copy_(flat[off:off + p.numel()].view_as(p))
            off += p.numel()


def reward(comp: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """Share of completion tokens that occur in the prompt."""
    return (comp[:, :, None] == prompt[:, None, :]).any(-1).float().mean(-1)


class Actor:
    def __init__(self, cfg: Config, roles: Roles):
        self.cfg, self.roles = cfg, roles
        self.net = build(cfg).eval().requires_grad_(False)
        self.gen = torch.Generator().manual_seed(cfg.seed + 1)

    @torch.no_grad()
    def generate(self):
        c = self.cfg
        prompt = torch.randint(0, VOCAB, (c.prompts, c.prompt_len), generator=self.gen)
        seq = prompt.repeat_interleave(c.group, 0)
        for _ in range(c.new_tokens):
            p = self.net(seq)[:, -1].softmax(-1)
            seq = torch.cat([seq, torch.multinomial(p, 1, generator=self.gen)], 1)
        r = reward(seq[:, c.prompt_len:], seq[:, :c.prompt_len]).view(c.prompts, c.group)
        adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-3)
        return seq, adv.view(-1), r.mean().item()

    def run(self):
        n = len(self.roles.learners)
        for i in range(self.cfg.rounds):
            seq, adv, mean = self.generate()
            for dst, s, a in zip(self.roles.learners, seq.chunk(n), adv.chunk(n)):
                dist.send(s.contiguous(), dst)
                dist.send(a.contiguous(), dst)
            if i % 3 == 0:
                log.info("round %d mean reward %.3f", i, mean)
            if (i + 1) % self.cfg.push_every == 0:
                push_weights(self.roles, self.net)


class Learner:
    def __init__(self, cfg: Config, roles: Roles):
        self.cfg, self.roles = cfg, roles
        self.net = DDP(build(cfg), process_group=roles.learner_group)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.rows = cfg.prompts * cfg.group // len(roles.learners)

    def receive(self):
        c = self.cfg
        seq = torch.empty(self.rows, c.prompt_len + c.new_tokens, dtype=torch.long)
        adv = torch.empty(self.rows)
        dist.recv(seq, self.roles.actor)
        dist.recv(adv, self.roles.actor)
        return seq, adv

    def learn(self, seq, adv) -> float:
        cut = self.cfg.prompt_len - 1
        logp = F.log_softmax(self.net(seq[:, :-1]), -1).gather(-1, seq[:, 1:, None]).squeeze(-1)[:, cut:]
        loss = -(adv[:, None] * logp).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.clip)
        self.opt.step()
        return loss.item()

    def run(self):
        for i in range(self.cfg.rounds):
            t0 = time.perf_counter()
            seq, adv = self.receive()
            waited = time.perf_counter() - t0
            t = torch.tensor(self.learn(seq, adv))
            dist.all_reduce(t, group=self.roles.learner_group)
            if self.roles.is_lead and i % 3 == 0:
                log.info("round %d loss %.4f waited %.2fs", i, t.item() / len(self.roles.learners), waited)
            if (i + 1) % self.cfg.push_every == 0:
                push_weights(self.roles, self.net.module)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=Config.rounds)
    ap.add_argument("--push-every", type=int, default=Config.push_every)
    a = ap.parse_args()
    cfg = Config(rounds=a.rounds, push_every=a.push_every)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"[rank {dist.get_rank()}] %(message)s")
    roles = Roles()
    worker = Actor(cfg, roles) if roles.is_actor else Learner(cfg, roles)
    worker.run()
    if roles.is_lead:
        torch.save(worker.net.module.state_dict(), "bleak_policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
