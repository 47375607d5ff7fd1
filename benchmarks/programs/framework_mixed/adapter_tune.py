import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler
from transformers import BertConfig, BertForSequenceClassification


class LowRank(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.a.T) @ self.b.T * self.scale


class BalancedSampler(Sampler):
    """Draws with replacement so that rare classes are as frequent as common ones; every rank draws its own."""

    def __init__(self, labels, per_rank, rank, seed=0):
        self.weights = 1.0 / torch.bincount(labels).float()[labels]
        self.per_rank, self.rank, self.seed, self.epoch = per_rank, rank, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.per_rank

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 7919 * self.epoch + self.rank)
        return iter(torch.multinomial(self.weights, self.per_rank, replacement=True, generator=g).tolist())


def adapt(model):
    model.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        att = layer.attention.self
        att.query, att.value = LowRank(att.query), LowRank(att.value)
    model.classifier.requires_grad_(True)
    return model


def rows(n=400):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 100, (n, 16), generator=g)
    y = (torch.rand(n, generator=g) < 0.1).long()
    ids[y == 1, 3] = 2
    return [(i, l) for i, l in zip(ids, y)], y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10)
    cfg = BertConfig(vocab_size=100, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
                     max_position_embeddings=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = DDP(adapt(BertForSequenceClassification(cfg)))
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=5e-3)
    data, labels = rows()
    sampler = BalancedSampler(labels, 160, rank)
    loader = DataLoader(data, 16, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, y in loader:
            loss = model(input_ids=ids, labels=y).loss
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trainable, 1.0)
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save({n: p for n, p in model.module.state_dict().items() if n.endswith((".a", ".b")) or "classifier" in n}, "adapter.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
