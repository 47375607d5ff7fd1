"""Group-relative policy optimisation on a toy token task."""
import argparse
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    vocab: int = 24
    prompt_len: int = 6
    gen_len: int = 5
    group: int = 6
    prompts: int = 4
    steps: int = 24
    lr: float = 2e-3
    clip: float = 1.0


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(h)


@torch.no_grad()
def rollout(lm, prompts, n):
    ids = prompts
    for _ in range(n):
        probs = lm(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    return ids


def reward_fn(prompts, completions):
    target = prompts[:, -1:].expand_as(completions)
    return (completions == target).float().mean(1) + 0.1 * (completions % 2 == 0).float().mean(1)


class Trainer:
    def __init__(self, cfg, rank):
        self.cfg, self.rank = cfg, rank
        self.policy = DDP(TinyLM(cfg.vocab))
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=cfg.lr)
        self.gen = torch.Generator().manual_seed(1000 + rank)

    def step(self):
        cfg = self.cfg
        prompts = torch.randint(0, cfg.vocab, (cfg.prompts, cfg.prompt_len), generator=self.gen)
        prompts = prompts.repeat_interleave(cfg.group, 0)
        actor = self.policy.module
        ids = rollout(actor, prompts, cfg.gen_len)
        comp = ids[:, cfg.prompt_len:]
        r = reward_fn(prompts, comp).view(cfg.prompts, cfg.group)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        logits = actor(ids[:, :-1])[:, cfg.prompt_len - 1:]
        logp = F.log_softmax(logits, -1).gather(-1, comp.unsqueeze(-1)).squeeze(-1)
        loss = -(adv * logp).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), cfg.clip)
        self.opt.step()
        return loss.item(), r.mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank)
    torch.manual_seed(77 + rank)
    trainer = Trainer(Config(steps=args.steps), rank)
    for i in range(args.steps):
        loss, rew = trainer.step()
        if i % 8 == 0:
            dist.all_reduce(rew)
            if rank == 0:
                print(f"step {i:3d} loss {loss:.4f} reward {rew.item() / dist.get_world_size():.3f}", flush=True)
    if rank == 0:
        torch.save(trainer.policy.module.state_dict(), "/tmp/larch_policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
