import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from rollout import PromptLoader, load_prompts


class Policy(nn.Module):
    def __init__(self, vocab=256, dim=128, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, layers, batch_first=True)
        self.pi = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        return self.pi(h[:, -1])


class GroupPolicyTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.policy = DDP(Policy(args.vocab))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=args.lr)
        self.loader = iter(PromptLoader(load_prompts(args.prompts, args.vocab), args.batch_size, self.rank, self.world))
        self.gen = torch.Generator().manual_seed(args.seed + 31 * self.rank)

    @torch.no_grad()
    def rollout(self, ids, target):
        logp = F.log_softmax(self.policy.module(ids), -1)
        actions = torch.multinomial(logp.exp(), self.args.group, replacement=True, generator=self.gen)
        distance = (actions - target[:, None]).abs().float()
        reward = torch.exp(-distance / 32)
        advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        return actions, logp.gather(1, actions), advantage, reward.mean()

    def update(self, ids, actions, old, advantage):
        logp = F.log_softmax(self.policy(ids), -1).gather(1, actions)
        ratio = (logp - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self):
        t0 = time.time()
        for step in range(1, self.args.steps + 1):
            ids, target = next(self.loader)
            actions, old, advantage, reward = self.rollout(ids, target)
            for _ in range(self.args.inner):
                loss = self.update(ids, actions, old, advantage)
            if step % 10 == 0 and self.rank == 0:
                print(f"step {step} reward {reward.item():.4f} loss {loss:.4f} "
                      f"{step / (time.time() - t0):.2f} steps/s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--prompts", type=int, default=10000)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--group", type=int, default=8)
    ap.add_argument("--inner", type=int, default=2)
    ap.add_argument("--vocab", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    GroupPolicyTrainer(args).train()
    dist.destroy_process_group()
