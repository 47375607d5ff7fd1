import argparse
import time
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Autoencoder(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(2 * c * 49, 32))
        self.dec = nn.Sequential(nn.Linear(32, 2 * c * 49), nn.ReLU(), nn.Unflatten(1, (2 * c, 7, 7)),
                                 nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 1, 4, 2, 1))

    def forward(self, x):
        z = self.enc(x)
        return self.dec(z), z


class Strokes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, 40)
        p = torch.rand(n, 3, 2, generator=g) * 24 + 2
        curve = ((1 - t) ** 2)[None, :, None] * p[:, :1] + (2 * t * (1 - t))[None, :, None] * p[:, 1:2] \
            + (t ** 2)[None, :, None] * p[:, 2:]
        axis = torch.arange(28.0)
        self.x = torch.zeros(n, 1, 28, 28)
        for i in range(n):
            dx = (axis[None] - curve[i, :, :1]).pow(2)
            dy = (axis[None] - curve[i, :, 1:]).pow(2)
            self.x[i, 0] = torch.exp(-(dy[:, :, None] + dx[:, None, :]) / 2).amax(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i


class Recorder:
    """Per-step training curves and per-sample test errors, kept for the final report."""

    def __init__(self):
        self.curves = defaultdict(list)
        self.sample_errors = {}

    def add(self, **values):
        for k, v in values.items():
            self.curves[k].append(v.detach().clone() if torch.is_tensor(v) else v)

    def mean(self, key, last):
        return torch.stack(self.curves[key][-last:]).mean().item()


@torch.no_grad()
def evaluate(model, loader, recorder, epoch):
    model.eval()
    errors, index = [], []
    for x, i in loader:
        recon, _ = model.module(x)
        errors.append((recon - x).pow(2).mean((1, 2, 3)).half())
        index.append(i)
    recorder.sample_errors[epoch] = (torch.cat(index).to(torch.int16), torch.cat(errors))
    total = torch.stack([torch.cat(errors).float().sum(), torch.tensor(float(sum(map(len, errors))))])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(15)
    model = DDP(Autoencoder())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    train_set, test_set = Strokes(2304, 1), Strokes(512, 2)
    train_sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler, drop_last=True)
    test_loader = DataLoader(test_set, 64, sampler=DistributedSampler(test_set, shuffle=False))
    recorder, t0 = Recorder(), time.time()
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        for x, _ in train_loader:
            recon, z = model(x)
            mse = F.mse_loss(recon, x)
            loss = mse + 1e-4 * z.pow(2).mean()
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            recorder.add(loss=loss, mse=mse, grad_norm=norm, lr=opt.param_groups[0]["lr"])
        test = evaluate(model, test_loader, recorder, epoch)
        if rank == 0:
            print(f"epoch {epoch} mse {recorder.mean('mse', len(train_loader)):.5f} test {test:.5f} "
                  f"|g| {recorder.mean('grad_norm', len(train_loader)):.3f} {time.time() - t0:.1f}s", flush=True)
    merged = [None] * world
    dist.all_gather_object(merged, recorder.sample_errors[args.epochs - 1])
    if rank == 0:
        worst = torch.cat([e for _, e in merged]).float().topk(5).values
        print("largest test errors", [round(v, 4) for v in worst.tolist()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
