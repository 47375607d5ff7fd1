"""Image/text contrastive pre-training (DDP)."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from loss import ClipLoss
from model import DualEncoder


class PairedTiles(Dataset):
    """Captions name the four colour patches of the tile, with filler tokens."""

    def __init__(self, n, vocab=40, length=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        palette = torch.rand(12, 3, generator=torch.Generator().manual_seed(99))
        self.code = torch.randint(0, 12, (n, 4), generator=g)
        patch = palette[self.code].view(n, 2, 2, 3).permute(0, 3, 1, 2)
        self.images = patch.repeat_interleave(8, 2).repeat_interleave(8, 3)
        self.images = self.images + 0.15 * torch.randn(self.images.shape, generator=g)
        filler = torch.randint(12, vocab, (n, length), generator=g)
        filler[:, ::2] = self.code
        self.ids = filler

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.images[i], self.ids[i]


@torch.no_grad()
def retrieval(model, ds):
    model.eval()
    im, tx, _ = model(ds.images, ds.ids)
    sim = im @ tx.T
    model.train()
    return (sim.argmax(1) == torch.arange(len(ds))).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--warmup", type=int, default=15)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_ds, val_ds = PairedTiles(3072, seed=1), PairedTiles(256, seed=2)
    sampler = DistributedSampler(train_ds, shuffle=True, drop_last=True)
    loader = DataLoader(train_ds, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(DualEncoder(vocab=40, length=8))
    criterion = ClipLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / args.warmup, max(0.05, 1 - (s - args.warmup) / total)))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, ids in loader:
            im, tx, scale = model(images, ids)
            loss = criterion(im, tx, scale)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            with torch.no_grad():
                model.module.logit_scale.clamp_(max=4.6)
        acc = retrieval(model.module, val_ds)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} recall@1 {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
