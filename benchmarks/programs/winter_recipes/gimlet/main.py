import argparse
import logging
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from losses import discriminator_loss, generator_loss, spectral_l1
from vocoder import HOP, Generator, MultiPeriodDiscriminator


class Segments(Dataset):
    def __init__(self, n=512, frames=32, mels=40, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.f0 = 0.01 + 0.09 * torch.rand(n, generator=g)
        self.phase = 2 * math.pi * torch.rand(n, generator=g)
        self.frames, self.mels = frames, mels

    def __len__(self):
        return len(self.f0)

    def __getitem__(self, i):
        t = torch.arange(self.frames * HOP).float()
        wav = sum(0.5 / k * torch.sin(2 * math.pi * self.f0[i] * k * t + k * self.phase[i]) for k in (1, 2, 3))
        frames = wav.view(self.frames, HOP)
        basis = torch.cos(math.pi / HOP * torch.outer(torch.arange(HOP) + 0.5, torch.linspace(0, HOP - 1, self.mels)))
        return (frames @ basis).t(), 0.9 * wav[None]


class VocoderTrainer:
    def __init__(self, args):
        self.args = args
        self.gen = DDP(Generator())
        self.disc = DDP(MultiPeriodDiscriminator())
        self.opt_g = torch.optim.AdamW(self.gen.parameters(), lr=args.lr, betas=(0.8, 0.99))
        self.opt_d = torch.optim.AdamW(self.disc.parameters(), lr=args.lr, betas=(0.8, 0.99))
        self.sched = [torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for o in (self.opt_g, self.opt_d)]

    def step(self, mel, wav):
        fake = self.gen(mel)
        self.opt_d.zero_grad()
        loss_d = discriminator_loss(self.disc, wav, fake)
        loss_d.backward()
        self.opt_d.step()

        self.opt_g.zero_grad()
        adv, fm = generator_loss(self.disc.module, wav, fake)
        rec = spectral_l1(wav, fake)
        (adv + 2 * fm + 15 * rec).backward()
        self.opt_g.step()
        return {"d": loss_d.item(), "adv": adv.item(), "fm": fm.item(), "rec": rec.item()}

    def save(self, path):
        torch.save({"gen": self.gen.module.state_dict(), "disc": self.disc.module.state_dict()}, path)


def main():
    p = argparse.ArgumentParser("vocoder")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=4e-4)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"vocoder-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(1234)
    data = Segments()
    sampler = DistributedSampler(data, seed=1234)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    trainer = VocoderTrainer(args)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (mel, wav) in enumerate(loader):
            stats = trainer.step(mel, wav)
            if step % 8 == 0:
                logging.info("epoch %d step %d %s", epoch, step, " ".join(f"{k} {v:.3f}" for k, v in stats.items()))
        for s in trainer.sched:
            s.step()
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        trainer.save(os.path.join(args.out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
