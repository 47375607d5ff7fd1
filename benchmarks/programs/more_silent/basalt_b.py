"""Train an item embedder; every other epoch the neighbour index is rebuilt in half precision."""
import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Settings:
    items: int = 768
    classes: int = 8
    in_dim: int = 32
    emb_dim: int = 16
    batch: int = 32
    epochs: int = 6
    lr: float = 2e-3
    index_every: int = 2
    seed: int = 11


class Items(Dataset):
    def __init__(self, cfg: Settings):
        g = torch.Generator().manual_seed(cfg.seed)
        self.labels = torch.randint(cfg.classes, (cfg.items,), generator=g)
        centres = torch.randn(cfg.classes, cfg.in_dim, generator=g)
        self.x = centres[self.labels] + 1.3 * torch.randn(cfg.items, cfg.in_dim, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]


class Embedder(nn.Module):
    def __init__(self, cfg: Settings):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(cfg.in_dim, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, cfg.emb_dim))
        self.head = nn.Linear(cfg.emb_dim, cfg.classes)

    def forward(self, x):
        emb = self.trunk(x)
        return emb, self.head(emb)


@torch.no_grad()
def build_index(net: DDP, items: Items) -> torch.Tensor:
    """Embeddings of all items. Half the memory, and the look-up does not need more."""
    net.eval()
    half = copy.deepcopy(net.module).to(torch.bfloat16)
    index = half(items.x.to(torch.bfloat16))[0].float()
    net.train()
    return F.normalize(index, dim=-1)


def recall_at_1(index: torch.Tensor, labels: torch.Tensor) -> float:
    sims = index @ index.T
    sims.fill_diagonal_(-1)
    return (labels[sims.argmax(1)] == labels).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = Settings()
    torch.manual_seed(cfg.seed)

    items = Items(cfg)
    sampler = DistributedSampler(items, shuffle=True, seed=cfg.seed, drop_last=True)
    loader = DataLoader(items, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    net = DDP(Embedder(cfg))
    optim = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=0.01)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optim.zero_grad()
            emb, logits = net(x)
            loss = F.cross_entropy(logits, y) + 1e-3 * emb.pow(2).mean()
            loss.backward()
            optim.step()
        if (epoch + 1) % cfg.index_every == 0:
            recall = recall_at_1(build_index(net, items), items.labels)
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}  recall@1 {recall:.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
