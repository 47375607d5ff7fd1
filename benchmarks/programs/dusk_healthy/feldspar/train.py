"""Actor / learner REINFORCE with replay (IMPALA-flavoured), the learner is rank 0.

Actors play episodes of random length with slightly stale weights and push them; the learner takes
what comes, whoever it is from, keeps a growing replay buffer and answers with fresh weights every
few episodes only.
"""
import argparse
import collections
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

OBS, ACT, MAXLEN = 8, 4, 64
HELLO, EPISODE, BYE = 0, 1, 2


class ActorCritic(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi, self.v = nn.Linear(hidden, ACT), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class Grid:
    """Catch a drifting target on a torus; an episode ends when caught or after MAXLEN steps."""
    MOVES = torch.tensor([[0., 1.], [0., -1.], [1., 0.], [-1., 0.]])

    def __init__(self, rng):
        self.rng = rng
        self.me = torch.tensor([rng.uniform(-4, 4), rng.uniform(-4, 4)])
        self.it = torch.tensor([rng.uniform(-4, 4), rng.uniform(-4, 4)])

    def obs(self):
        d = self.it - self.me
        return torch.cat([d, d.sign(), self.me / 4, self.it / 4])

    def step(self, a):
        before = (self.it - self.me).norm()
        self.me = (self.me + 0.5 * self.MOVES[a]).clamp(-5, 5)
        self.it = (self.it + 0.1 * torch.tensor([self.rng.gauss(0, 1), self.rng.gauss(0, 1)])).clamp(-5, 5)
        after = (self.it - self.me).norm()
        caught = bool(after < 0.6)
        return (before - after).item() - 0.02 + (2.0 if caught else 0.0), caught


def play(net, rng):
    env, rows = Grid(rng), []
    for _ in range(MAXLEN):
        o = env.obs()
        with torch.no_grad():
            d = torch.distributions.Categorical(logits=net(o)[0])
            a = d.sample()
        r, done = env.step(int(a))
        rows.append(torch.cat([o, torch.tensor([float(a), r, d.log_prob(a).item()])]))
        if done:
            break
    return torch.stack(rows)


def actor(args, rank):
    rng = random.Random(rank)
    torch.manual_seed(rank)
    net = ActorCritic()
    flat = parameters_to_vector(net.parameters()).detach()
    dist.send(torch.tensor([HELLO, 0, 0]), dst=0)
    dist.recv(flat, src=0)
    vector_to_parameters(flat, net.parameters())
    for ep in range(args.episodes + 15 * rank):          # actors do not play equally many games
        traj = play(net, rng)
        want = int(ep % args.pull_every == args.pull_every - 1)
        dist.send(torch.tensor([EPISODE, len(traj), want]), dst=0)
        dist.send(traj, dst=0)
        if want:
            dist.recv(flat, src=0)
            vector_to_parameters(flat, net.parameters())
    dist.send(torch.tensor([BYE, 0, 0]), dst=0)


def learner(args, world):
    torch.manual_seed(0)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    replay, rng = collections.deque(maxlen=args.capacity), random.Random(0)
    head, alive, updates, returns = torch.zeros(3, dtype=torch.long), world - 1, 0, collections.deque(maxlen=50)
    t0 = time.time()
    while alive:
        src = dist.recv(head)
        kind, length, want = head.tolist()
        if kind == BYE:
            alive -= 1
            continue
        if kind == HELLO:
            dist.send(parameters_to_vector(net.parameters()).detach(), dst=src)
            continue
        traj = torch.empty(length, OBS + 3)
        dist.recv(traj, src=src)
        ret = torch.zeros(length)
        acc = 0.0
        for t in reversed(range(length)):
            acc = traj[t, OBS + 1] + 0.97 * acc
            ret[t] = acc
        replay.append((traj, ret))
        returns.append(traj[:, OBS + 1].sum().item())
        batch = [replay[-1]] + rng.choices(replay, k=min(7, len(replay)))
        rows, target = torch.cat([b[0] for b in batch]), torch.cat([b[1] for b in batch])
        logits, value = net(rows[:, :OBS])
        logp = logits.log_softmax(-1)
        taken = logp.gather(1, rows[:, OBS:OBS + 1].long()).squeeze(1)
        rho = (taken.detach() - rows[:, OBS + 2]).exp().clamp(max=1.0)     # truncated importance weight
        adv = (target - value).detach()
        loss = -(rho * adv * taken).mean() + 0.5 * (rho * (target - value) ** 2).mean() + 0.01 * (logp.exp() * logp).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        updates += 1
        if want:
            dist.send(parameters_to_vector(net.parameters()).detach(), dst=src)
        if updates % 50 == 0:
            print(f"update {updates} replay {len(replay)} return {sum(returns) / len(returns):.2f} "
                  f"{updates / (time.time() - t0):.1f} upd/s", flush=True)
    return net


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=120)
    ap.add_argument("--pull-every", type=int, default=4)
    ap.add_argument("--capacity", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        net = learner(args, dist.get_world_size())
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(out, "agent.pt"))
    else:
        actor(args, dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
