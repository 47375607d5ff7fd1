import torch
import torch.distributed as dist
import torch.nn.functional as F


class FitLoop:
    def __init__(self, model, optimizer, loader, progress, max_passes):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.progress, self.max_passes = progress, max_passes

    def on_pass_start(self):
        sampler = self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.progress.epoch)

    def on_pass_end(self, losses):
        mean = torch.tensor(losses).mean()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"{self.progress.describe()} loss {mean:.4f}", flush=True)

    def run(self):
        for _ in range(self.max_passes):
            self.on_pass_start()
            losses = []
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
                self.progress.advance(len(x))
            self.on_pass_end(losses)
