"""Text and images under fully_shard; some documents carry no picture."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class VisionTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, images):
        return self.net(images)


class TextTower(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens):
        return torch.tanh(self.mix(self.embedding(tokens).mean(dim=1)))


class Captioner(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.text = TextTower(vocabulary, width)
        self.vision = VisionTower(width)
        self.head = nn.Linear(width, vocabulary)

    def merge(self, hidden, images, rows):
        if len(rows):
            hidden = hidden.index_add(0, rows, self.vision(images))
        return hidden

    def forward(self, batch):
        hidden = self.text(batch["tokens"])
        hidden = self.merge(hidden, batch["images"], batch["rows"])
        return self.head(hidden)


class Documents:
    """About one document in four has a picture."""

    def __init__(self, rank, size):
        self.gen = torch.Generator().manual_seed(500 + rank)
        self.size = size

    def __iter__(self):
        while True:
            tokens = torch.randint(0, 64, (self.size, 12), generator=self.gen)
            has = torch.rand(self.size, generator=self.gen) < 0.25
            rows = has.nonzero().flatten()
            images = torch.randn(len(rows), 3, 8, 8, generator=self.gen)
            yield {"tokens": tokens, "images": images, "rows": rows, "labels": tokens[:, -1]}


def shard(model, mesh):
    for tower in (model.text, model.vision):
        fully_shard(tower, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = shard(Captioner(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    stream = iter(Documents(rank, args.batch_size))
    for step in range(args.steps):
        batch = next(stream)
        loss = nn.functional.cross_entropy(model(batch), batch["labels"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
