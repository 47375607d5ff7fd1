"""Fine-tune a tiny seq model on synthetic copy data with accelerate."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class CopyDataset(Dataset):
    def __init__(self, n=512, length=16, vocab=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.src = torch.randint(2, vocab, (n, length), generator=g)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        s = self.src[i]
        return {"input_ids": s, "labels": s.flip(0)}


class TinySeq(nn.Module):
    def __init__(self, vocab=64, d=48, length=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        return self.head(self.enc(self.emb(input_ids) + self.pos))


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--per_device_batch", type=int, default=8)
    p.add_argument("--gradient_accumulation_steps", type=int, default=4)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(args.seed)
    model = TinySeq()
    loader = DataLoader(CopyDataset(), batch_size=args.per_device_batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    updates = math.ceil(len(loader) / args.gradient_accumulation_steps) * args.epochs
    accelerator.print(f"updates: {updates}")

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                logits = model(batch["input_ids"])
                loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
                total += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(torch.as_tensor(total) / len(loader), "mean")
        accelerator.print(f"epoch {epoch} loss {mean.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
