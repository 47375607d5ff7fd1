"""Answer-only fine-tuning with length-aware batch splitting (DDP)."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from packing import BudgetLoader, PromptAnswerSet


class AnswerModel(nn.Module):
    def __init__(self, vocab, dim=96, heads=4, depth=2, max_len=112):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.full((t, t), float("-inf")), 1)
        h = self.emb(ids) + self.pos[-t:]
        return self.out(self.body(h, mask=mask, is_causal=True))


def masked_loss(logits, labels):
    token_loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    num_items = (labels != -100).sum()
    return token_loss / num_items, token_loss.detach(), num_items


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--items", type=int, default=1280)
    ap.add_argument("--global-batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(25)
    ds = PromptAnswerSet(args.items)
    loader = BudgetLoader(ds, args.global_batch, rank, world, seed=4)
    model = DDP(AnswerModel(64))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=15)
    for epoch in range(args.epochs):
        loader.set_epoch(epoch)
        stat = torch.zeros(2, dtype=torch.float64)
        for ids, labels in loader:
            loss, token_loss, num_items = masked_loss(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            stat += torch.stack([token_loss.double(), num_items.double()])
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} loss {(stat[0] / stat[1]).item():.4f} tokens {int(stat[1])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
