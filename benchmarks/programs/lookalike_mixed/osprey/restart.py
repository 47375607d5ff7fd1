import torch

from lowrank import LowRank


class Restarter:
    def __init__(self, net, every, seed):
        self.net, self.every, self.seed = net, every, seed

    def due(self, step):
        return step % self.every == 0

    def renew(self, params, sched, step):
        g = torch.Generator().manual_seed(self.seed + step)
        with torch.no_grad():
            for m in self.net.modules():
                if isinstance(m, LowRank):
                    m.down.copy_(torch.randn(m.down.shape, generator=g) / m.down.shape[1] ** 0.5)
        state = sched.state_dict()
        opt = torch.optim.Adam(params, lr=5e-3)
        new = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.05, 1 - s / 120))
        new.load_state_dict(state)
        for group, lr in zip(opt.param_groups, new.get_last_lr()):
            group["lr"] = lr
        return opt, new
