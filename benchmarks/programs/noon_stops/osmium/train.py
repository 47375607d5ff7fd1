import argparse

import torch
import torch.distributed as dist
from torch import nn

from curriculum import Curriculum

MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def observe(pos, goal, size):
    scale = torch.full((len(pos), 1), size / 8.0)
    return torch.cat([pos / size, (goal - pos) / size, scale], 1)


def rollout(policy, n, size, horizon, greedy=False):
    pos, goal = torch.randint(0, size, (n, 2)), torch.randint(0, size, (n, 2))
    done = (pos == goal).all(1)
    logps, rewards, alive = [], [], []
    for _ in range(horizon):
        pi = policy(observe(pos.float(), goal.float(), size))
        act = pi.probs.argmax(1) if greedy else pi.sample()
        logps.append(pi.log_prob(act))
        alive.append(~done)
        before = (goal - pos).abs().sum(1)
        pos = torch.where(done[:, None], pos, (pos + MOVES[act]).clamp(0, size - 1))
        after = (goal - pos).abs().sum(1)
        rewards.append((before - after).float() - 0.1)
        done = done | (pos == goal).all(1)
    return torch.stack(logps), torch.stack(rewards), torch.stack(alive), done.float().mean().item()


def policy_loss(logps, rewards, alive, gamma=0.95):
    ret, total = torch.zeros(rewards.size(1)), []
    for r, a in zip(reversed(rewards), reversed(alive)):
        ret = r * a + gamma * ret
        total.append(ret)
    ret = torch.stack(total[::-1])
    adv = (ret - ret[alive].mean()) / (ret[alive].std() + 1e-6)
    return -(logps * adv)[alive].mean()


@torch.no_grad()
def average(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--phases", type=int, default=8)
    ap.add_argument("--updates", type=int, default=25)
    ap.add_argument("--envs", type=int, default=512)
    ap.add_argument("--horizon", type=int, default=14)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    torch.manual_seed(10 + rank)
    plan = Curriculum()
    for phase in range(args.phases):
        for _ in range(args.updates):
            loss = policy_loss(*rollout(policy, args.envs, plan.size, args.horizon)[:3])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            average(policy.parameters())
            opt.step()
        with torch.no_grad():
            success = rollout(policy, 1024, plan.size, args.horizon, greedy=True)[3] if rank == 0 else None
        plan.advance(phase, success)
        if rank == 0:
            print(f"phase {phase} success {success:.3f} next size {plan.size}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
