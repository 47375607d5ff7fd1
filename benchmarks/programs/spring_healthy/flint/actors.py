import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

PROMPT, SLOTS, VOCAB = 24, 6, 12
ROLLOUT_TAG, WEIGHT_TAG, EVAL_TAG = 1, 2, 3


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PROMPT, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, SLOTS * VOCAB))

    def forward(self, prompt):
        return self.net(prompt).view(-1, SLOTS, VOCAB).log_softmax(-1)


class Judge:
    def __init__(self):
        self.w = torch.randn(PROMPT, SLOTS * VOCAB, generator=torch.Generator().manual_seed(2))

    def best(self, prompt):
        return (prompt @ self.w).view(-1, SLOTS, VOCAB).argmax(-1)

    def reward(self, prompt, action):
        return (self.best(prompt) == action).float().mean(-1)


def pack(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def unpack(module, flat):
    for p, c in zip(module.parameters(), flat.split([p.numel() for p in module.parameters()])):
        p.data.copy_(c.view_as(p))


def run_trainer(cfg, group):
    me = dist.get_rank()
    policy = DDP(Policy(), process_group=group)
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    width = PROMPT + SLOTS * 2 + 1
    buf, pending = torch.empty(cfg.batch, width), []
    for step in range(cfg.steps):
        dist.recv(buf, src=cfg.generator, tag=ROLLOUT_TAG)
        prompt, action = buf[:, :PROMPT], buf[:, PROMPT:PROMPT + SLOTS].long()
        old, reward = buf[:, PROMPT + SLOTS:-1], buf[:, -1]
        adv = (reward - reward.mean()) / (reward.std() + 1e-4)
        logp = policy(prompt)
        ratio = (logp.gather(-1, action.unsqueeze(-1)).squeeze(-1) - old).exp()
        gain = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None]).mean()
        loss = -gain + 0.01 * (logp.exp() * logp).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if me == 0:
            if (step + 1) % cfg.refresh == 0:
                dist.send(pack(policy.module), dst=cfg.generator, tag=WEIGHT_TAG)
            if (step + 1) % cfg.eval_every == 0:
                for work, _ in pending:
                    work.wait()
                copy = pack(policy.module)
                pending = [(dist.isend(copy, dst=cfg.evaluator, tag=EVAL_TAG), copy)]
                logging.info("step %d reward %.4f", step + 1, reward.mean())
    for work, _ in pending:
        work.wait()
    return pack(policy.module)


@torch.no_grad()
def run_generator(cfg):
    policy, judge = Policy(), Judge()
    gen = torch.Generator().manual_seed(55)
    incoming = pack(policy)
    for step in range(cfg.steps):
        out = []
        for dst in cfg.trainers:
            prompt = torch.randn(cfg.batch, PROMPT, generator=gen)
            logp = policy(prompt)
            action = torch.multinomial(logp.exp().view(-1, VOCAB), 1, generator=gen).view(-1, SLOTS)
            old = logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            rows = torch.cat([prompt, action.float(), old, judge.reward(prompt, action)[:, None]], 1)
            out.append((dist.isend(rows, dst=dst, tag=ROLLOUT_TAG), rows))
        for work, _ in out:
            work.wait()
        if (step + 1) % cfg.refresh == 0:
            dist.recv(incoming, src=0, tag=WEIGHT_TAG)
            unpack(policy, incoming)
    return incoming


@torch.no_grad()
def run_evaluator(cfg):
    policy, judge = Policy(), Judge()
    gen = torch.Generator().manual_seed(3)
    prompt = torch.randn(4000, PROMPT, generator=gen)
    best, flat, scores = judge.best(prompt), pack(policy), []
    for _ in range(cfg.steps // cfg.eval_every):
        dist.recv(flat, src=0, tag=EVAL_TAG)
        unpack(policy, flat)
        time.sleep(cfg.eval_seconds)        # the judge model answers over the network
        scores.append((policy(prompt).argmax(-1) == best).float().mean().item())
    return flat, scores
