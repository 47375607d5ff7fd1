import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from overlap import OverlappedReducer


class TabTransformer(nn.Module):
    def __init__(self, fields=16, cardinality=200, dim=96, layers=3, heads=4):
        super().__init__()
        self.emb = nn.Embedding(fields * cardinality, dim)
        self.register_buffer("offset", torch.arange(fields) * cardinality)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, fields):
        h = self.encoder(self.emb(fields + self.offset))
        return self.out(h.mean(1)).squeeze(-1)


def make_clicks(n, fields=16, cardinality=200):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, cardinality, (n, fields), generator=g)
    effect = torch.randn(fields, cardinality, generator=g)
    score = effect.gather(1, x.t()).sum(0) / 2
    return TensorDataset(x, (torch.rand(n, generator=g) < torch.sigmoid(score)).float())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(23)
    model = TabTransformer()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    reducer = OverlappedReducer(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = make_clicks(9216)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            reducer.zero()
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            reducer.wait()
            opt.step()
            step += 1
            if step % 12 == 0 and rank == 0:
                print(f"step {step} loss {loss.item():.4f} {step / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
