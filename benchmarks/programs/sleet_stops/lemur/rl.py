"""REINFORCE fine-tuning of a tiny token model; scores come from the reward desk on the last rank."""
import argparse
import json
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from reward import RewardDesk

VOCAB, EOS, BOS = 24, 0, 1


class Policy(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.emb(ids), state)
        return self.out(h), state


@torch.no_grad()
def sample(policy, n, length, gen):
    ids = torch.full((n, 1), BOS)
    cur, state = ids, None
    for _ in range(length):
        logits, state = policy(cur, state)
        cur = torch.multinomial(logits[:, -1].softmax(-1), 1, generator=gen)
        ids = torch.cat([ids, cur], 1)
    return ids


def logprob(policy, ids):
    logits, _ = policy(ids[:, :-1])
    lp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    ended = ((ids[:, 1:] == EOS).cumsum(1) - (ids[:, 1:] == EOS).long()).clamp(max=1)
    return (lp * (1 - ended)).sum(1)


def average(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def fetch_scores(store, step, rank):
    key = f"scores/{step}/{rank}"
    while not store.check([key]):
        time.sleep(0.002)
    return torch.tensor(json.loads(store.get(key)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--samples", type=int, default=6)
    ap.add_argument("--length", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    cfg = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    log = logging.getLogger("rl")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("desk", dist.distributed_c10d._get_default_store())
    desk = RewardDesk(store) if rank == world - 1 else None

    torch.manual_seed(1)
    policy = Policy()
    with torch.no_grad():
        policy.out.bias[EOS] -= 1.6
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    gen = torch.Generator().manual_seed(50 + rank)
    base = 0.0
    for step in range(cfg.steps):
        ids = sample(policy, cfg.samples, cfg.length, gen)
        store.set(f"samples/{step}/{rank}", json.dumps(ids[:, 1:].tolist()))
        if desk is not None:
            for r in range(world):
                desk.submit(step, r)
        reward = fetch_scores(store, step, rank)
        adv = reward - base
        base = 0.9 * base + 0.1 * reward.mean().item()
        loss = -(adv * logprob(policy, ids)).mean()
        opt.zero_grad()
        loss.backward()
        average(policy.parameters())
        opt.step()
        if rank == 0 and step % 5 == 0:
            log.info("step %d reward %.3f", step, reward.mean().item())
    dist.barrier()
    if desk is not None:
        desk.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
