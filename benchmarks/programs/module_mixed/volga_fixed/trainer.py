import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, max_steps, callbacks=()):
        self.max_steps = max_steps
        self.callbacks = list(callbacks)
        self.global_step = 0
        self.should_stop = False
        self.last_loss = float("nan")
        self.is_global_zero = dist.get_rank() == 0

    def _call(self, hook):
        for cb in self.callbacks:
            getattr(cb, hook)(self)

    def fit(self, module, loader):
        model = DDP(module)
        opt = module.configure_optimizers()
        self._call("on_fit_start")
        while not self.should_stop and self.global_step < self.max_steps:
            for batch in loader:
                loss = module.loss(model, batch)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                self.global_step += 1
                self.last_loss = loss.item()
                self._call("on_step_end")
                if self.should_stop or self.global_step >= self.max_steps:
                    break
        dist.barrier()
        self._call("on_fit_end")
        return self.evaluate(model, module, loader)

    @torch.no_grad()
    def evaluate(self, model, module, loader):
        total = torch.zeros(2, dtype=torch.double)
        for batch in loader:
            total[0] += module.loss(model.module, batch).item()
            total[1] += 1
        dist.all_reduce(total)
        return (total[0] / total[1]).item()
