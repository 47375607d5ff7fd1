import torch
from torch import nn


def make_policy(cfg):
    torch.manual_seed(cfg.seed)
    return nn.Sequential(nn.Linear(cfg.states, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.actions))


class Actor:
    def __init__(self, cfg):
        self.cfg = cfg
        self.policy = make_policy(cfg)
        self.rng = torch.Generator().manual_seed(cfg.seed + 1)
        self.goal = torch.randn(cfg.states, cfg.actions, generator=torch.Generator().manual_seed(99))
        self.finished = []

    @torch.no_grad()
    def episode(self):
        total = 0.0
        for _ in range(self.cfg.horizon):
            s = torch.randn(1, self.cfg.states, generator=self.rng)
            probs = self.policy(s).softmax(-1)
            a = torch.multinomial(probs, 1, generator=self.rng).item()
            total += float((s @ self.goal).argmax() == a)
        return total

    def work(self, it):
        rounds = 1 if it % 3 == 0 else 0
        rounds += it // 60
        for _ in range(rounds):
            self.finished.append(self.episode())

    def backlog(self):
        return len(self.finished) / 8.0

    def drain(self):
        row = torch.tensor([float(len(self.finished)), sum(self.finished), 0.0])
        self.finished.clear()
        return row
