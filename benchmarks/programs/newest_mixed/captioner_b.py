import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HIDDEN, VOCAB, PATCH = 64, 128, 48


class VisionTower(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Linear(PATCH, HIDDEN)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU()) for _ in range(depth))

    def forward(self, patches):
        h = self.embed(patches)
        for block in self.blocks:
            h = h + block(h)
        return h.mean(dim=1)


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.visual = VisionTower()
        self.decoder = nn.ModuleList(nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(HIDDEN, VOCAB)

    def merge(self, h, patches, slots):
        feats = self.visual(patches)
        prefix = torch.zeros_like(h)
        prefix = prefix.index_add(0, slots, feats[: len(slots)].unsqueeze(1).expand(-1, h.size(1), -1))
        return h + prefix + 0.0 * feats.sum()

    def forward(self, ids, patches, slots):
        h = self.tokens(ids)
        if len(slots) > 0:
            h = self.merge(h, patches, slots)
        for layer in self.decoder:
            h = h + layer(h)
        return self.head(h)


class MixedStream:
    def __init__(self, rank, batch=4, length=12, image_ratio=0.5):
        self.rng = random.Random(1234 + 17 * rank)
        self.batch, self.length, self.image_ratio = batch, length, image_ratio

    def draw(self):
        ids = torch.randint(0, VOCAB, (self.batch, self.length))
        slots = [i for i in range(self.batch) if self.rng.random() < self.image_ratio]
        patches = torch.randn(len(slots), 4, PATCH)
        return ids, patches, torch.tensor(slots, dtype=torch.long)


def build(mesh):
    model = Captioner()
    for block in model.visual.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model.visual, mesh=mesh)
    for layer in model.decoder:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = MixedStream(rank, image_ratio=float(os.environ.get("IMAGE_RATIO", "0.4")))
    for step in range(60):
        ids, patches, slots = stream.draw()
        logits = model(ids, patches, slots)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
