import copy
import os
import time

import torch
import torch.distributed as dist
from torchvision.utils import save_image


class Trainer:
    def __init__(self, model, loader, lr, total_steps, preview_every, preview_size, sampling_steps, folder):
        self.model = model
        self.loader = loader
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.total_steps = total_steps
        self.preview_every = preview_every
        self.sampling_steps = sampling_steps
        self.folder = folder
        self.rank = dist.get_rank()
        g = torch.Generator().manual_seed(77)
        self.preview_noise = torch.randn(preview_size, 1, 16, 16, generator=g)
        if self.rank == 0:
            os.makedirs(folder, exist_ok=True)
        self.ema = copy.deepcopy(model.module).requires_grad_(False)

    @torch.no_grad()
    def update_ema(self, decay=0.98):
        for e, p in zip(self.ema.parameters(), self.model.module.parameters()):
            e.lerp_(p, 1 - decay)

    def batches(self):
        epoch = 0
        while True:
            self.loader.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def preview(self, step):
        world = dist.get_world_size()
        part = self.ema.ddim(self.preview_noise.chunk(world)[self.rank], self.sampling_steps)
        parts = [torch.empty_like(part) for _ in range(world)] if self.rank == 0 else None
        dist.gather(part, parts, dst=0)
        if self.rank == 0:
            images = torch.cat(parts)
            save_image(images * 0.5 + 0.5, os.path.join(self.folder, f"sample-{step % 10}.png"), nrow=8)

    def train(self):
        t0 = time.time()
        data = self.batches()
        for step in range(1, self.total_steps + 1):
            loss = self.model(next(data)[0])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.update_ema()
            if step % self.preview_every == 0:
                self.preview(step)
            if step % 10 == 0 and self.rank == 0:
                print(f"step {step} loss {loss.item():.4f} elapsed {time.time() - t0:.1f}s", flush=True)
