"""A small training harness with the hooks of the usual module/trainer split."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Module(nn.Module):
    def configure_optimizers(self):
        raise NotImplementedError

    def training_step(self, batch, step):
        raise NotImplementedError

    def validation_step(self, batch, step):
        pass

    def on_validation_epoch_start(self):
        pass

    def on_validation_epoch_end(self):
        pass


class Trainer:
    def __init__(self, max_steps, val_every, log_every=20):
        self.max_steps = max_steps
        self.val_every = val_every
        self.log_every = log_every
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])

    def loader(self, data, batch_size, train):
        sampler = DistributedSampler(data, shuffle=train, seed=5)
        return DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=train)

    @torch.no_grad()
    def validate(self, module, loader):
        module.eval()
        module.on_validation_epoch_start()
        for i, batch in enumerate(loader):
            module.validation_step(batch, i)
        metrics = module.on_validation_epoch_end() or {}
        module.train()
        for key in sorted(metrics):
            value = torch.as_tensor(float(metrics[key]))
            dist.all_reduce(value)
            metrics[key] = value.item() / self.world
        return metrics

    def fit(self, module, train_data, val_data, batch_size):
        wrapped = DDP(module)
        opt, sched = module.configure_optimizers()
        train_loader = self.loader(train_data, batch_size, True)
        val_loader = self.loader(val_data, batch_size, False)
        step, epoch = 0, 0
        start = time.time()
        while step < self.max_steps:
            train_loader.sampler.set_epoch(epoch)
            for batch in train_loader:
                loss = module.training_step(wrapped, batch)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                step += 1
                if step % self.log_every == 0 and self.rank == 0:
                    print(f"step {step:4d} loss {loss.item():.4f} ({time.time() - start:.1f}s)", flush=True)
                if step % self.val_every == 0:
                    metrics = self.validate(module, val_loader)
                    if self.rank == 0:
                        print(f"step {step:4d} " + " ".join(f"{k} {v:.4f}" for k, v in metrics.items()), flush=True)
                if step >= self.max_steps:
                    break
            epoch += 1
