import random
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MetricBuffer:
    def __init__(self):
        self._pending = defaultdict(list)

    def log_metric(self, name, value):
        self._pending[name].append(float(value))

    def flush(self):
        report = {}
        names = sorted(self._pending)
        for name in names:
            values = self._pending.get(name, [])
            pair = torch.tensor([sum(values), float(len(values))])
            parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, pair)
            total = torch.stack(parts).sum(0)
            report[name] = (total[0] / total[1].clamp(min=1)).item()
        self._pending.clear()
        return report


class Prompt:
    __slots__ = ("kind", "features")

    def __init__(self, kind, features):
        self.kind, self.features = kind, features


class PromptSource:
    kinds = ["chat"] * 6 + ["math"] * 3 + ["code"]

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def batch(self, n=5):
        return [Prompt(self.rng.choice(self.kinds), torch.randn(32)) for _ in range(n)]


def length_reward(action, prompt, log):
    log("reward/length", action.float().mean())
    return 1.0 - 0.1 * action.float().mean()


def accuracy_reward(action, prompt, log):
    if prompt.kind != "math":
        return torch.tensor(0.0)
    hit = (action == int(prompt.features.argmax()) % 8).float().mean()
    log("reward/math_accuracy", hit)
    return hit


def compile_reward(action, prompt, log):
    if prompt.kind == "code":
        log("reward/compiles", 1.0)
        return torch.tensor(0.5)
    return torch.tensor(0.0)


class PolicyTrainer:
    rewards = (length_reward, accuracy_reward, compile_reward)

    def __init__(self, rank):
        torch.manual_seed(3)
        self.rank = rank
        self.policy = DDP(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)))
        self.opt = torch.optim.SGD(self.policy.parameters(), lr=0.05)
        self.buffer = MetricBuffer()
        self.source = PromptSource(100 + rank)

    def score(self, action, prompt):
        return sum(fn(action, prompt, self.buffer.log_metric) for fn in self.rewards)

    def training_step(self):
        prompts = self.source.batch()
        logits = self.policy(torch.stack([p.features for p in prompts]))
        pi = torch.distributions.Categorical(logits=logits)
        actions = pi.sample((4,))
        adv = torch.stack([self.score(actions[:, i], p) for i, p in enumerate(prompts)])
        adv = adv - adv.mean()
        loss = -(pi.log_prob(actions).mean(0) * adv).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def fit(self, steps=80, logging_steps=2):
        for step in range(1, steps + 1):
            self.training_step()
            if step % logging_steps == 0:
                report = self.buffer.flush()
                if self.rank == 0:
                    print(step, {k: round(v, 3) for k, v in report.items()}, flush=True)


def main():
    dist.init_process_group("gloo")
    PolicyTrainer(dist.get_rank()).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
