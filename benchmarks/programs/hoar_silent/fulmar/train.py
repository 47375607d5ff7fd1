"""Policy gradient on a small chain world. Rank 0 learns, the other ranks play."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical


class Chain:
    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def reset(self):
        self.pos = self.rng.randrange(self.n // 2)
        return self.obs()

    def obs(self):
        o = torch.zeros(self.n)
        o[self.pos] = 1
        return o

    def step(self, a):
        move = 1 if a == 1 else -1
        if self.rng.random() < 0.1:
            move = -move
        self.pos = max(0, self.pos + move)
        done = self.pos >= self.n - 1
        return self.obs() if not done else torch.zeros(self.n), (1.0 if done else -0.01), done


def push_weights(net):
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    dist.broadcast(flat, src=0)
    if dist.get_rank() != 0:
        nn.utils.vector_to_parameters(flat, net.parameters())


@torch.no_grad()
def play(env, net, horizon):
    obs, acts, rews, dones = [], [], [], []
    o = env.reset()
    for _ in range(horizon):
        a = Categorical(logits=net(o)).sample().item()
        o2, r, d = env.step(a)
        obs.append(o), acts.append(a), rews.append(r), dones.append(d)
        o = env.reset() if d else o2
    return {"obs": torch.stack(obs), "act": torch.tensor(acts), "rew": rews, "done": dones}


def returns(traj, gamma):
    g, out = 0.0, []
    for r, d in zip(reversed(traj["rew"]), reversed(traj["done"])):
        g = r + gamma * g * (not d)
        out.append(g)
    return torch.tensor(out[::-1])


def learn(net, opt, trajs, gamma):
    obs = torch.cat([t["obs"] for t in trajs])
    act = torch.cat([t["act"] for t in trajs])
    ret = torch.cat([returns(t, gamma) for t in trajs])
    adv = (ret - ret.mean()) / (ret.std() + 1e-6)
    pi = Categorical(logits=net(obs))
    loss = -(pi.log_prob(act) * adv).mean() - 0.01 * pi.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), sum(sum(t["rew"]) for t in trajs) / len(trajs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=40)
    ap.add_argument("--horizon", type=int, default=80)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--size", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(60 + rank)
    net = nn.Sequential(nn.Linear(args.size, 32), nn.Tanh(), nn.Linear(32, 2))
    opt = torch.optim.Adam(net.parameters(), lr=0.02) if rank == 0 else None
    env = Chain(args.size, random.Random(rank))
    for rnd in range(1, args.rounds + 1):
        push_weights(net)
        mine = play(env, net, args.horizon) if rank != 0 else None
        box = [None] * world if rank == 0 else None
        dist.gather_object(mine, box, dst=0)
        if rank == 0:
            loss, score = learn(net, opt, box[1:], args.gamma)
            if rnd % 8 == 0:
                print(f"round {rnd} loss {loss:.3f} return {score:.2f}", flush=True)
    push_weights(net)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
