"""Group-relative policy optimisation on a toy answer task, with a colocated sampler that sleeps between rollouts."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Args:
    prompts: int = 64
    dim: int = 12
    answers: int = 10
    per_step: int = 8
    group: int = 8
    steps: int = 90
    lr: float = 5e-3


def make_policy(a: Args) -> nn.Module:
    return nn.Sequential(nn.Linear(a.dim, 64), nn.Tanh(), nn.Linear(64, a.answers))


class Sampler:
    """Stands in for the inference server: keeps its own copy of the weights."""

    def __init__(self, a: Args, launch_state: dict):
        self.net = make_policy(a).requires_grad_(False)
        self.launch_state = {k: v.clone() for k, v in launch_state.items()}
        self.net.load_state_dict(self.launch_state)

    @torch.no_grad()
    def sleep(self):
        for p in self.net.parameters():
            p.zero_()

    def wake_up(self):
        self.net.load_state_dict(self.launch_state)

    def update_weights(self, state: dict):
        self.net.load_state_dict(state)

    @torch.no_grad()
    def generate(self, prompts, n):
        probs = torch.softmax(self.net(prompts), -1)
        return torch.multinomial(probs, n, replacement=True)


class Task:
    def __init__(self, a: Args):
        g = torch.Generator().manual_seed(12)
        self.prompts = torch.randn(a.prompts, a.dim, generator=g)
        self.best = (self.prompts @ torch.randn(a.dim, a.answers, generator=g)).argmax(-1)

    def reward(self, idx, answers):
        return (answers == self.best[idx].unsqueeze(1)).float()


def rollout(sampler: Sampler, policy: nn.Module, prompts, n):
    sampler.update_weights(policy.state_dict())
    sampler.wake_up()
    answers = sampler.generate(prompts, n)
    sampler.sleep()
    return answers


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    a = Args()
    torch.manual_seed(0)
    policy = DDP(make_policy(a))
    sampler = Sampler(a, policy.module.state_dict())
    task = Task(a)
    opt = torch.optim.Adam(policy.parameters(), lr=a.lr)
    torch.manual_seed(1000 + rank)                # own answers on every rank
    picker = torch.Generator().manual_seed(3)     # one draw of prompts, shared out over the ranks

    for step in range(a.steps):
        drawn = torch.randperm(a.prompts, generator=picker)[: a.per_step * world]
        idx = drawn[rank::world]
        answers = rollout(sampler, policy.module, task.prompts[idx], a.group)
        reward = task.reward(idx, answers)
        adv = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        logp = torch.log_softmax(policy(task.prompts[idx]), -1).gather(1, answers)
        loss = -(adv * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            shown = reward.mean()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step}: mean reward {shown.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
