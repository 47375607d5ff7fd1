import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Trainer:
    def __init__(self, model, optimizer, train_loader, dev_loader, sampler, epochs, patience=20):
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.dev_loader = dev_loader
        self.sampler = sampler
        self.epochs = epochs
        self.patience = patience
        self.best = math.inf
        self.bad_counter = 0
        self.history = {"train_loss": [], "dev_loss": []}

    @staticmethod
    def _step(model, batch):
        pred = model(batch["y0"], batch["u"])
        loss = F.mse_loss(pred, batch["y"])
        smooth = (pred[:, 1:] - pred[:, :-1]).pow(2).mean()
        return {"loss": loss + 1e-3 * smooth, "mse": loss}

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            out = self._step(self.model, batch)
            out["loss"].backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total += out["loss"].item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = []
        for batch in self.dev_loader:
            out = self._step(self.model.module, batch)
            losses.append(out["mse"])
        return torch.stack(losses).mean()

    def fit(self):
        rank = dist.get_rank()
        t0 = time.time()
        for epoch in range(self.epochs):
            self.sampler.set_epoch(epoch)
            train_loss = self.train_epoch()
            dev_loss = self.evaluate()
            self.history["train_loss"].append(train_loss)
            self.history["dev_loss"].append(dev_loss)
            score = dev_loss.item()
            if score < self.best:
                self.best, self.bad_counter = score, 0
            else:
                self.bad_counter += 1
            if rank == 0:
                recent = torch.stack(self.history["dev_loss"][-5:]).mean().item()
                print(f"epoch {epoch:3d} train {train_loss:.5f} dev {score:.5f} dev(5) {recent:.5f} "
                      f"time {time.time() - t0:.1f}s", flush=True)
            if self.bad_counter > self.patience:
                break
        return self.best
