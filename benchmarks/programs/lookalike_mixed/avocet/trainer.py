import torch
import torch.distributed as dist
import torch.nn.functional as F

from gradtools import limit_gradients


class Trainer:
    def __init__(self, model, opt, loader, max_norm):
        self.model, self.opt, self.loader, self.max_norm = model, opt, loader, max_norm

    def run_batch(self, x, y):
        self.opt.zero_grad()
        loss = F.mse_loss(self.model(x).squeeze(-1), y)
        loss.backward()
        norm = limit_gradients(self.model.parameters(), self.max_norm)
        self.opt.step()
        return loss.detach(), norm

    def fit(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            seen = [torch.stack(self.run_batch(x, y)) for x, y in self.loader]
            loss, norm = torch.stack(seen).mean(0).tolist()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} loss {loss:.4f} grad norm {norm:.3f}", flush=True)
