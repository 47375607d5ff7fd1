import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from comms import Channel
from curriculum import Curriculum

log = logging.getLogger("learner")


class GridWorld:
    """Pick the arm whose noisy hint is largest; noise grows with the level."""

    def __init__(self, seed, arms=8):
        self.gen = torch.Generator().manual_seed(seed)
        self.arms = arms

    def batch(self, size, level):
        best = torch.randint(0, self.arms, (size,), generator=self.gen)
        hint = nn.functional.one_hot(best, self.arms).float()
        return hint + 0.12 * level * torch.randn(size, self.arms, generator=self.gen), best

    def rollout_seconds(self):
        return 0.01 + 0.05 * torch.rand(1, generator=self.gen).item()


class Learner:
    def __init__(self, args, channel, curriculum):
        self.args, self.channel, self.curriculum = args, channel, curriculum
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.policy = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 8))
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=args.lr)
        self.env = GridWorld(seed=10 + self.rank)

    def step(self):
        time.sleep(self.env.rollout_seconds())
        obs, best = self.env.batch(self.args.batch_size, self.curriculum.level)
        dist_ = torch.distributions.Categorical(logits=self.policy(obs))
        action = dist_.sample()
        reward = (action == best).float()
        loss = -(dist_.log_prob(action) * (reward - reward.mean())).mean()
        self.opt.zero_grad()
        loss.backward()
        grads = nn.utils.parameters_to_vector([p.grad for p in self.policy.parameters()])
        self.channel.all_reduce(grads)
        grads /= dist.get_world_size()
        offset = 0
        for p in self.policy.parameters():
            p.grad.copy_(grads[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        self.opt.step()
        self.curriculum.record(reward.mean().item())
        return reward.mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--warmup", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--curriculum-rounds", type=int, default=18)
    p.add_argument("--curriculum-interval", type=float, default=0.35)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{dist.get_rank()}] %(name)s %(message)s")
    gradients, statistics = Channel("gradients"), Channel("statistics")
    curriculum = Curriculum(statistics, args.curriculum_rounds, args.curriculum_interval)
    learner = Learner(args, gradients, curriculum)
    for step in range(args.steps):
        if step == args.warmup:
            curriculum.start()
        reward = learner.step()
        if step % 20 == 0:
            log.info("step %d reward %.3f", step, reward)
    curriculum.join()
    dist.barrier()
    if learner.rank == 0:
        log.info("finished at level %d", curriculum.level)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
