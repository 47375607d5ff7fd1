"""Lookahead: fast weights explore, slow weights follow every k steps."""
from collections import defaultdict

import torch
from torch.optim import Optimizer


class Lookahead(Optimizer):
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha = base, k, alpha
        self.defaults = base.defaults
        self.param_groups = base.param_groups
        self.state = defaultdict(dict)
        self.counter = 0
        self._optimizer_step_pre_hooks = base._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = base._optimizer_step_post_hooks
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def sync(self):
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p]["slow"]
                slow.lerp_(p, self.alpha)
                p.copy_(slow)

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            self.sync()
        return loss

    def state_dict(self):
        slow = [self.state[p]["slow"] for g in self.param_groups for p in g["params"]]
        return {"base": self.base.state_dict(), "slow": slow, "counter": self.counter}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.param_groups = self.base.param_groups
        self.counter = state["counter"]
        flat = [p for g in self.param_groups for p in g["params"]]
        for p, s in zip(flat, state["slow"]):
            self.state[p]["slow"].copy_(s)
