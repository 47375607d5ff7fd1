import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical


class Balance:
    """A point on a line that is pushed left or right and should stay near the middle."""

    def __init__(self, seed, limit=40):
        self.generator = torch.Generator().manual_seed(seed)
        self.limit = limit

    def reset(self):
        self.state = 0.2 * torch.randn(2, generator=self.generator)
        self.t = 0
        return self.state.clone()

    def step(self, action):
        push = 0.1 if action == 1 else -0.1
        noise = 0.02 * torch.randn((), generator=self.generator)
        self.state = torch.stack([self.state[0] + 0.2 * self.state[1], self.state[1] + push + noise])
        self.t += 1
        out = bool(self.state[0].abs() > 1.0)
        return self.state.clone(), float(1.0 - self.state[0].abs()), out or self.t >= self.limit


def episode(env, policy, greedy=False, generator=None):
    obs, done, seen, acts, rewards = env.reset(), False, [], [], []
    while not done:
        with torch.no_grad():
            probs = policy(obs).softmax(-1)
        action = int(probs.argmax()) if greedy else int(torch.multinomial(probs, 1, generator=generator))
        seen.append(obs)
        acts.append(action)
        obs, reward, done = env.step(action)
        rewards.append(reward)
    returns, total = [], 0.0
    for r in reversed(rewards):
        total = r + 0.97 * total
        returns.insert(0, total)
    return torch.stack(seen), torch.tensor(acts), torch.tensor(returns)


def normalise(returns):
    parts = torch.tensor([returns.sum(), (returns**2).sum(), float(len(returns))])
    dist.all_reduce(parts)
    mean = parts[0] / parts[2]
    std = (parts[1] / parts[2] - mean**2).clamp(min=1e-6).sqrt()
    return (returns - mean) / std, parts[2]


def reduce_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=12)
    p.add_argument("--episodes", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    for q in policy.parameters():
        dist.broadcast(q.data, src=0)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    env = Balance(seed=1000 + rank)
    draws = torch.Generator().manual_seed(2000 + rank)
    for update in range(args.updates):
        rolls = [episode(env, policy, generator=draws) for _ in range(args.episodes)]
        seen, acts, returns = (torch.cat(part) for part in zip(*rolls))
        advantage, count = normalise(returns)
        loss = -(Categorical(logits=policy(seen)).log_prob(acts) * advantage).sum() / count
        opt.zero_grad()
        loss.backward()
        reduce_gradients(policy)
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        if update % 4 == 3:
            if rank == 0:
                steps = len(episode(Balance(seed=5), policy, greedy=True)[0])
                print(f"update {update} greedy episode lasted {steps}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
