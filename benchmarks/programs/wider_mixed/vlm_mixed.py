"""Vision-language model, FSDP2 over both towers; some conversations come without a picture."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class VisionEncoder(nn.Module):
    def __init__(self, dim, depth=2):
        super().__init__()
        self.patch = nn.Linear(3 * 16, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))

    def forward(self, pixels):
        h = self.patch(pixels)
        for b in self.blocks:
            h = h + b(h)
        return h


class Decoder(nn.Module):
    def __init__(self, vocab, dim, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, h):
        mask = nn.Transformer.generate_square_subsequent_mask(h.size(1))
        for b in self.blocks:
            h = b(h, src_mask=mask, is_causal=True)
        return self.head(h)


class VLM(nn.Module):
    IMAGE = 1

    def __init__(self, vocab=50, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.visual = VisionEncoder(dim)
        self.decoder = Decoder(vocab, dim)

    def forward(self, ids, pixel_values=None):
        h = self.embed(ids)
        if pixel_values is not None:
            feats = self.visual(pixel_values).flatten(0, 1)
            h = h.masked_scatter((ids == self.IMAGE).unsqueeze(-1), feats)
        return self.decoder(h)


class Conversations:
    """Every row of a batch with pictures carries four image tokens."""

    def __init__(self, seed, image_ratio):
        self.g = torch.Generator().manual_seed(seed)
        self.ratio = image_ratio

    def batch(self, n=4, length=14):
        ids = torch.randint(2, 50, (n, length), generator=self.g)
        if torch.rand(1, generator=self.g).item() >= self.ratio:
            return ids, None
        ids[:, 2:6] = VLM.IMAGE
        return ids, torch.randn(n, 4, 48, generator=self.g)


def shard(model):
    tower = DeviceMesh.from_group(dist.new_group(), "cpu")
    for b in model.visual.blocks:
        fully_shard(b, mesh=tower)
    fully_shard(model.visual, mesh=tower)
    for b in model.decoder.blocks:
        fully_shard(b)
    return fully_shard(model)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--image-ratio", type=float, default=0.85)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(VLM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Conversations(20 + rank, args.image_ratio)
    for step in range(args.steps):
        ids, pixels = data.batch()
        logits = model(ids, pixels)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
