"""Actors and one learner: rank 0 learns, all other ranks play."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from world import Corridors

LEARNER = 0


class Policy(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.act = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, look):
        h = self.trunk(look)
        return self.act(h), self.value(h).squeeze(-1)


def fresh_weights(policy):
    flat = parameters_to_vector(policy.parameters()).detach()
    dist.broadcast(flat, LEARNER)
    vector_to_parameters(flat, policy.parameters())


class Actor:
    def __init__(self, args, rank):
        self.policy = Policy()
        self.world = Corridors(args.games, args.length, seed=args.seed * 100 + rank)
        self.gen = torch.Generator().manual_seed(args.seed * 100 + 50 + rank)
        self.turns = args.turns

    @torch.no_grad()
    def play(self):
        rows = []
        for _ in range(self.turns):
            look = self.world.look()
            logits, _ = self.policy(look)
            action = torch.multinomial(logits.softmax(-1), 1, generator=self.gen).squeeze(1)
            reward, done = self.world.step(action)
            rows.append(torch.cat([look, action[:, None], reward[:, None], done[:, None]], 1))
        return torch.stack(rows), self.world.look()

    def run(self, updates):
        for _ in range(updates):
            fresh_weights(self.policy)
            rows, last = self.play()
            dist.send(rows.contiguous(), LEARNER, tag=1)
            dist.send(last.contiguous(), LEARNER, tag=2)


class Learner:
    def __init__(self, args, actors):
        self.args, self.actors = args, actors
        self.policy = Policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=args.lr)

    def collect(self):
        rows, lasts = [], []
        for actor in self.actors:
            r = torch.empty(self.args.turns, self.args.games, 6)
            last = torch.empty(self.args.games, 3)
            dist.recv(r, actor, tag=1)
            dist.recv(last, actor, tag=2)
            rows.append(r)
            lasts.append(last)
        return torch.cat(rows, 1), torch.cat(lasts)

    def learn(self, rows, last):
        look, action, reward, done = rows[..., :3], rows[..., 3].long(), rows[..., 4], rows[..., 5]
        with torch.no_grad():
            running = self.policy(last)[1]
            returns = torch.empty_like(reward)
            for t in reversed(range(len(reward))):
                running = reward[t] + self.args.discount * running * (1 - done[t])
                returns[t] = running
        logits, value = self.policy(look)
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        logp = F.log_softmax(logits, -1)
        chosen = logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * advantage).mean() + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.opt.step()
        return (reward > 0.5).sum().item() / max(done.sum().item(), 1)

    def run(self, updates):
        for update in range(updates):
            fresh_weights(self.policy)
            won = self.learn(*self.collect())
            if update % 10 == 9:
                print(f"update {update} games won {won:.3f}", flush=True)
        os.makedirs(self.args.out, exist_ok=True)
        torch.save(self.policy.state_dict(), os.path.join(self.args.out, "policy.pt"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=60)
    ap.add_argument("--games", type=int, default=16)
    ap.add_argument("--turns", type=int, default=20)
    ap.add_argument("--length", type=int, default=4)
    ap.add_argument("--discount", type=float, default=0.95)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "corridors"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    worker = Learner(args, range(1, world)) if rank == LEARNER else Actor(args, rank)
    worker.run(args.updates)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
