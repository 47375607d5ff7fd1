import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("audio")


class Clips(Dataset):
    """Synthetic one-second clips; not every file is whole."""

    truncated = {37}

    def __len__(self):
        return 192

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        f = 5 + 20 * (i % 4)
        wave = torch.sin(torch.arange(400) / 400 * 6.28 * f) + 0.5 * torch.randn(400, generator=g)
        return (wave[:90] if i in self.truncated else wave), i % 4


def collate(rows):
    return [w for w, _ in rows], torch.tensor([y for _, y in rows])


class Spectral(nn.Module):
    def __init__(self, n_fft=128):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.net = nn.Sequential(nn.Linear(n_fft // 2 + 1, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, spec):
        return self.net(spec)


def features(clips, n_fft=128):
    frames = torch.stack([c.unfold(0, n_fft, n_fft // 2) for c in clips])
    return torch.fft.rfft(frames * torch.hann_window(n_fft)).abs().mean(1)


def train_epoch(model, loader, opt, rank):
    model.train()
    skipped = 0
    for step, (clips, y) in enumerate(loader):
        try:
            loss = nn.functional.cross_entropy(model(features(clips)), y)
        except RuntimeError as err:
            log.warning("rank %d step %d skipped: %s", rank, step, str(err).splitlines()[0])
            skipped += 1
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item(), skipped


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Spectral())
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    ds = Clips()
    sampler = DistributedSampler(ds, seed=2)
    loader = DataLoader(ds, 8, sampler=sampler, collate_fn=collate)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loss, skipped = train_epoch(model, loader, opt, rank)
        stats = torch.tensor([loss, float(skipped)])
        gathered = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, stats)
        if rank == 0:
            print(f"epoch {epoch} loss {torch.stack(gathered)[:, 0].mean():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
