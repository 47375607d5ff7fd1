import argparse
import math
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from codec.net import AudioCodec


class Clips(Dataset):
    def __init__(self, n=640, length=256):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(9000 + i)
        f = 0.02 + 0.2 * torch.rand(2, generator=g)
        t = torch.arange(self.length)
        wav = torch.sin(2 * math.pi * f[0] * t) + 0.5 * torch.sin(2 * math.pi * f[1] * t)
        return (wav + 0.02 * torch.randn(self.length, generator=g)).unsqueeze(0)


def reduce_mean(*values):
    t = torch.tensor(values)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).tolist()


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        data = Clips()
        self.sampler = DistributedSampler(data, seed=cfg.seed)
        self.loader = DataLoader(data, cfg.batch, sampler=self.sampler, drop_last=True)
        self.codec = AudioCodec()
        self.model = DDP(self.codec, broadcast_buffers=False)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr, betas=(0.5, 0.9))

    def step(self, wav):
        out, commit, idx = self.model(wav)
        rec = (out - wav).abs().mean()
        self.opt.zero_grad()
        (rec + 0.25 * commit).backward()
        self.opt.step()
        return rec.item(), commit.item(), float(idx.unique().numel())

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for wav in self.loader:
                stats = self.step(wav)
            rec, commit, used = reduce_mean(*stats)
            if self.rank == 0:
                print(f"epoch={epoch} rec={rec:.4f} commit={commit:.4f} codes={used:.1f}", flush=True)
            self.save(epoch)

    def save(self, epoch):
        if self.rank == 0:
            folder = pathlib.Path(self.cfg.out)
            folder.mkdir(exist_ok=True)
            torch.save({"codec": self.codec.state_dict(), "epoch": epoch}, folder / "codec.pt")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", default="weights")
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).fit()
    dist.barrier()
    dist.destroy_process_group()
