import torch
import torch.distributed as dist
import torch.nn.functional as F


class Session:
    def __init__(self, model, horizon):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=horizon)
        self.epoch = 0

    def run(self, data, epochs):
        self.model.train()
        for self.epoch in epochs:
            data.sampler.set_epoch(self.epoch)
            total = torch.zeros(())
            for x, y in data:
                self.opt.zero_grad()
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                self.opt.step()
                self.sched.step()
                total += loss.detach()
            if dist.get_rank() == 0:
                print(f"epoch {self.epoch} loss {float(total) / len(data):.4f} lr {self.sched.get_last_lr()[0]:.5f}", flush=True)

    def save(self, path):
        if dist.get_rank() == 0:
            state = {
                "net": self.model.module.state_dict(),
                "opt": self.opt.state_dict(),
                "sched": self.sched.state_dict(),
                "epoch": self.epoch,
            }
            torch.save(state, path)

    def load(self, path):
        state = torch.load(path, map_location="cpu")
        self.model.module.load_state_dict(state["net"])
        self.sched.load_state_dict(state["sched"])
        for group, lr in zip(self.opt.param_groups, self.sched.get_last_lr()):
            group["lr"] = lr
        return state["epoch"] + 1
