import copy

import torch


class ModelEma:
    def __init__(self, model, decay):
        self.decay = decay
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.lerp_(p, 1 - d)

    def state_dict(self):
        return {"module": self.module.state_dict(), "updates": self.updates}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])
        self.updates = state["updates"]
