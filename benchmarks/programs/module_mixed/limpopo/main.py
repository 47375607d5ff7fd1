"""Policy gradient with rank-local environments and advantages normalised over all ranks."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from env import Corridor, collect

ITERS, EPISODES = 10, 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


def global_moments(x):
    s = torch.tensor([x.sum().item(), x.square().sum().item(), float(x.numel())], dtype=torch.double)
    dist.all_reduce(s)
    mean = s[0] / s[2]
    return mean.item(), (s[1] / s[2] - mean ** 2).clamp_min(1e-8).sqrt().item(), s[2].item()


def mean_gradients(model, weight):
    """Each rank's gradient is a sum over its own steps; the total is divided by all steps."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= weight
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    env = Corridor(40 + rank)
    for it in range(ITERS):
        obs, act, ret = collect(env, policy, EPISODES)
        mean, std, steps = global_moments(ret)
        adv = (ret - mean) / std
        nll = F.binary_cross_entropy_with_logits(policy(obs), act, reduction="none")
        opt.zero_grad()
        (nll * adv).sum().backward()
        mean_gradients(policy, steps)
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        if rank == 0:
            print(f"iter {it} return {mean:.2f} steps {int(steps)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
