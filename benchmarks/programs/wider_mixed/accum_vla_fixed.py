"""Vision-language-action trainer with gradient accumulation."""
import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class VLA(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.vision = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.language = nn.EmbeddingBag(200, dim)
        self.fuse = nn.Sequential(nn.Linear(2 * dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 4 * dim), nn.GELU())
        self.action = nn.Linear(4 * dim, 7)

    def forward(self, image, text):
        return self.action(self.fuse(torch.cat([self.vision(image), self.language(text)], 1)))


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(0)
        self.model = DDP(VLA())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.gen = torch.Generator().manual_seed(7 + dist.get_rank())

    def batches(self):
        while True:
            image = torch.randn(4, 3, 16, 16, generator=self.gen)
            text = torch.randint(0, 200, (4, 6), generator=self.gen)
            action = torch.stack([image.mean((1, 2, 3)) * k + text.float().mean(1) / 100 for k in range(7)], 1)
            yield image, text, action

    def _forward_loss(self, batch):
        image, text, action = batch
        return nn.functional.smooth_l1_loss(self.model(image, text), action)

    def _grad_sync_ctx(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def train(self):
        data = self.batches()
        for step in range(self.args.steps):
            total = 0.0
            for micro in range(self.args.accum):
                with self._grad_sync_ctx(is_last=micro == self.args.accum - 1):
                    loss = self._forward_loss(next(data))
                    (loss / self.args.accum).backward()
                total += loss.detach()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            if dist.get_rank() == 0 and step % 5 == 0:
                print(f"step {step} loss {total.item() / self.args.accum:.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=16)
    ap.add_argument("--accum", type=int, default=4)
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).train()
    dist.destroy_process_group()
