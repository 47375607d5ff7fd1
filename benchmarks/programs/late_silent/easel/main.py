"""Star-rating regression with accelerate; exact scores on an odd-sized validation set."""
import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, 400, (n, 20), generator=g)
        mood = torch.randn(400, generator=torch.Generator().manual_seed(77))
        self.stars = (3 + mood[self.words].mean(1) * 4 + 0.3 * torch.randn(n, generator=g)).clamp(1, 5)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return i, self.words[i], self.stars[i]


class Rater(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(400, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2 * d, 1))

    def forward(self, w):
        return 3 + self.ff(self.emb(w).mean(1)).squeeze(1)


@torch.no_grad()
def score(accelerator, model, data, batch_size):
    """Every rank fills the cells of the rows it was given; rows given twice count once."""
    sampler = DistributedSampler(data, accelerator.num_processes, accelerator.process_index, shuffle=False)
    table = torch.zeros(len(data), dtype=torch.float64)
    given = torch.zeros(len(data), dtype=torch.float64)
    model.eval()
    for idx, words, stars in DataLoader(data, batch_size, sampler=sampler):
        table[idx] = (model(words) - stars).abs().double()
        given[idx] = 1.0
    model.train()
    both = accelerator.reduce(torch.stack([table, given]), "sum")
    assert int((both[1] > 0).sum()) == len(data)
    per_row = both[0] / both[1]
    return per_row.mean().item(), per_row.quantile(0.9).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--seed", type=int, default=31)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    train, val = Reviews(1024, args.seed), Reviews(203, args.seed + 1)
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)
    model = Rater()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    set_seed(args.seed, device_specific=True)
    total = args.epochs * len(loader)
    # kept out of prepare(): it counts optimizer steps, not samples
    sched = torch.optim.lr_scheduler.LambdaLR(opt.optimizer, lambda s: max(0.0, 1 - s / total))

    best = float("inf")
    for epoch in range(args.epochs):
        seen = torch.zeros(2)
        for _, words, stars in loader:
            loss = F.smooth_l1_loss(model(words), stars)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            sched.step()
            seen += torch.tensor([loss.item(), 1.0])
        seen = accelerator.reduce(seen, "sum")
        mae, p90 = score(accelerator, model, val, 32)
        accelerator.print(f"epoch {epoch} loss {seen[0] / seen[1]:.4f} mae {mae:.4f} p90 {p90:.4f} lr {sched.get_last_lr()[0]:.1e}")
        if mae < best and accelerator.is_main_process:
            args.out.mkdir(parents=True, exist_ok=True)
            torch.save(accelerator.unwrap_model(model).state_dict(), args.out / "rater.pt")
        best = min(best, mae)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
