import torch


class Guard:
    """Leaves a step out when a gradient of any process is not finite."""

    def __init__(self, accelerator):
        self.acc = accelerator
        self.left_out = 0

    def _bad(self, loss):
        return not torch.isfinite(loss).item()

    def agree(self, loss):
        flag = torch.tensor(float(self._bad(loss)), device=self.acc.device)
        return self.acc.reduce(flag, reduction="sum").item() == 0

    def step(self, model, opt, loss):
        if not self.agree(loss):
            self.left_out += 1
            opt.zero_grad()
            return False
        self.acc.backward(loss)
        self.acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        return True
