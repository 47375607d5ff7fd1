import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Do both halves of the sequence contain the same multiset?"""

    def __init__(self, n, seed, vocab=30, half=8):
        g = torch.Generator().manual_seed(seed)
        a = torch.randint(3, vocab, (n, half), generator=g)
        b = torch.stack([r[torch.randperm(half, generator=g)] for r in a])
        self.y = torch.randint(0, 2, (n,), generator=g)
        other = torch.randint(3, vocab, (n, half), generator=g)
        b = torch.where(self.y[:, None] == 1, b, other)
        self.x = torch.cat([a, torch.ones(n, 1, dtype=torch.long), b], 1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.y[i]}


class PairModel(nn.Module):
    def __init__(self, vocab=30, d=64):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Parameter(0.02 * torch.randn(17, d))
        lay = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.t, self.o = nn.TransformerEncoder(lay, 2, enable_nested_tensor=False), nn.Linear(d, 2)

    def forward(self, input_ids, labels=None):
        logits = self.o(self.t(self.e(input_ids) + self.p).mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--output", default="run")
    args = ap.parse_args()
    acc = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate, project_dir=args.output)
    set_seed(7)
    train, val = Pairs(2000, 1), Pairs(455, 2)
    train_loader = DataLoader(train, args.batch, shuffle=True)
    val_loader = DataLoader(val, 32)
    model = PairModel()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, train_loader, val_loader = acc.prepare(model, opt, train_loader, val_loader)
    set_seed(7, device_specific=True)
    updates = args.epochs * -(-len(train_loader) // args.accumulate)
    sched = torch.optim.lr_scheduler.LinearLR(opt.optimizer, 1.0, 0.05, updates)
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            with acc.accumulate(model):
                loss = model(**batch)["loss"]
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                if acc.sync_gradients:
                    sched.step()
                opt.zero_grad()
        model.eval()
        hits = seen = 0
        for batch in val_loader:
            with torch.no_grad():
                pred = model(**batch)["logits"].argmax(1)
            pred, ref = acc.gather_for_metrics((pred, batch["labels"]))
            hits += (pred == ref).sum().item()
            seen += len(ref)
        acc.print(f"epoch {epoch} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e} acc {hits / seen:.3f} of {seen}")
        acc.save_state(f"{args.output}/epoch{epoch}")
    acc.wait_for_everyone()
    if acc.is_main_process:
        torch.save(acc.unwrap_model(model).state_dict(), f"{args.output}/final.pt")
    acc.end_training()


if __name__ == "__main__":
    main()
