"""Fine-tunes a pretrained tagger head and trunk; the trunk came with heavy dropout that is not wanted here."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Tagger(nn.Module):
    def __init__(self, vocab=100, width=32, tags=5, dropout=0.3):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.drop = nn.Dropout(dropout)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tags)

    def forward(self, ids):
        h = self.drop(self.emb(ids))
        h = h + F.gelu(self.conv(h.transpose(1, 2)).transpose(1, 2))
        return self.head(self.drop(self.norm(h)))


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 100, (n, 14), generator=g)
    return TensorDataset(x, (x + x.roll(1, dims=1)) // 40)


def load_pretrained(model):
    g = torch.Generator().manual_seed(77)
    state = {k: v + 0.01 * torch.randn(v.shape, generator=g) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=8)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = load_pretrained(Tagger())
    model = DDP(model)
    model.eval()  # deterministic fine-tuning, dropout stays off
    train, held = sentences(1024, 5), sentences(128, 6)
    sampler = DistributedSampler(train, seed=1, drop_last=True)
    loader = DataLoader(train, a.batch, sampler=sampler, drop_last=True)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=a.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / a.warmup))
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            seen += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(seen)
        if rank == 0:
            with torch.no_grad():
                acc = (model.module(held.tensors[0]).argmax(-1) == held.tensors[1]).float().mean().item()
            print(f"epoch {epoch} loss {seen[0] / seen[1]:.4f} tag acc {acc:.3f}", flush=True)
    if rank == 0:
        os.makedirs("out_bled", exist_ok=True)
        torch.save(model.module.state_dict(), "out_bled/tagger.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
