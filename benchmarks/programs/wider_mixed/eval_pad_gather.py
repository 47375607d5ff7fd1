import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.lens = torch.randint(5, 18, (n,), generator=g).tolist()
        self.ids = [torch.randint(1, 50, (k,), generator=g) for k in self.lens]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"ids": ids, "label": int((ids > 25).float().mean() > 0.5)}


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, :len(r["ids"])] = r["ids"]
    return {"ids": ids, "label": torch.tensor([r["label"] for r in rows])}


class BagClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 24, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids):
        keep = (ids > 0).unsqueeze(-1)
        h = (self.emb(ids) * keep).sum(1) / keep.sum(1).clamp_min(1)
        return self.mlp(h)


def evaluate(accelerator, model, loader):
    model.eval()
    right = total = 0
    longest = []
    for batch in loader:
        with torch.no_grad():
            logits = model(batch["ids"])
        ids = accelerator.pad_across_processes(batch["ids"], dim=1, pad_index=0)
        pred, ref, ids = accelerator.gather_for_metrics((logits.argmax(-1), batch["label"], ids))
        right += (pred == ref).sum().item()
        total += len(ref)
        longest.append((ids > 0).sum(1).max().item())
    model.train()
    return right / total, total, max(longest)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(42)
    train, valid = Pairs(300, 0), Pairs(101, 1)
    train_dl = DataLoader(train, batch_size=12, shuffle=True, collate_fn=collate)
    valid_dl = DataLoader(valid, batch_size=8, collate_fn=collate)
    model = BagClassifier()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    model, opt, train_dl, valid_dl, sched = accelerator.prepare(model, opt, train_dl, valid_dl, sched)
    for epoch in range(4):
        for batch in train_dl:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["ids"]), batch["label"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
        acc, n, width = evaluate(accelerator, model, valid_dl)
        accelerator.print(f"epoch {epoch}: accuracy {acc:.3f} over {n} rows, longest {width}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
