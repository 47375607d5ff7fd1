"""Event tagger for sensor series: local attention blocks with a home-made batch norm, plain DDP."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from layers import ChannelNorm, LocalAttention


class Tagger(nn.Module):
    def __init__(self, dim=48, tags=4, depth=2):
        super().__init__()
        self.lift = nn.Linear(3, dim)
        self.mix = nn.ModuleList(LocalAttention(dim, 4, 6) for _ in range(depth))
        self.norm = nn.ModuleList(ChannelNorm(dim) for _ in range(depth))
        self.head = nn.Linear(dim, tags)
        self.register_buffer("loss_ema", torch.zeros(()))  # for the progress line

    def forward(self, x, y=None):
        h = self.lift(x)
        for mix, norm in zip(self.mix, self.norm):
            h = F.gelu(norm(h + mix(h)))
        logits = self.head(h)
        if y is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        if self.training:
            self.loss_ema.lerp_(loss.detach(), 0.1)
        return loss


def series(gen, n, t=48):
    x = torch.randn(n, t, 3, generator=gen)
    smooth = F.avg_pool1d(x.transpose(1, 2), 5, 1, 2).transpose(1, 2)
    y = (smooth[..., 0] > 0).long() * 2 + (smooth[..., 1] > smooth[..., 2]).long()
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(Tagger())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(60 + rank)
    held_x, held_y = series(torch.Generator().manual_seed(1), 256)
    for step in range(1, 91):
        model.train()
        x, y = series(gen, 32)
        loss = model(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            model.eval()
            with torch.no_grad():
                part = slice(rank, None, world)
                hits = (model(held_x[part]).argmax(-1) == held_y[part]).float().mean() / world
            dist.all_reduce(hits)
            if rank == 0:
                print(f"step {step} loss {model.module.loss_ema.item():.3f} held-out {hits.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
