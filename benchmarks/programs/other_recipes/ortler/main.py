import argparse
import logging
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import VOCAB, Utterances, collate
from sampling import BucketBatchSampler, DistributedBatches

log = logging.getLogger("asr")


@dataclass
class Config:
    epochs: int = 3
    max_frames: int = 320
    hidden: int = 24
    lr: float = 4e-3
    clip: float = 5.0
    seed: int = 17


class CTCNet(nn.Module):
    def __init__(self, feat, hidden):
        super().__init__()
        self.subsample = nn.Conv1d(feat, hidden, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, x, lengths):
        x = torch.relu(self.subsample(x.transpose(1, 2))).transpose(1, 2)
        lengths = (lengths + 1) // 2
        x, _ = self.rnn(self.norm(x))
        return self.out(x).log_softmax(-1), lengths


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Recipe:
    def __init__(self, cfg: Config):
        self.cfg, self.rank = cfg, dist.get_rank()
        seed_everything(cfg.seed + self.rank)
        self.train_set = Utterances(seed=1)
        self.dev_set = Utterances(n=24, seed=2)
        self.batches = DistributedBatches(BucketBatchSampler(self.train_set.lengths, cfg.max_frames))
        self.loader = DataLoader(self.train_set, batch_sampler=self.batches, collate_fn=collate)
        self.dev_loader = DataLoader(self.dev_set, 8, collate_fn=collate)
        self.model = DDP(CTCNet(8, cfg.hidden))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.85)
        self.ctc = nn.CTCLoss(zero_infinity=True)

    def loss(self, net, batch):
        feats, flen, tokens, tlen = batch
        logp, olen = net(feats, flen)
        return self.ctc(logp.transpose(0, 1), tokens, olen, tlen)

    def train_epoch(self, epoch):
        self.model.train()
        self.batches.set_epoch(epoch)
        meter, frames = 0.0, 0
        for batch in self.loader:
            loss = self.loss(self.model, batch)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.opt.step()
            meter += loss.item()
            frames += int(batch[1].sum())
        self.sched.step()
        log.info("rank %d epoch %d: %d batches, %d frames, loss %.3f", self.rank, epoch,
                 len(self.batches), frames, meter / len(self.batches))

    @torch.no_grad()
    def dev(self):
        self.model.eval()
        return sum(self.loss(self.model.module, b).item() for b in self.dev_loader) / len(self.dev_loader)

    def run(self):
        for epoch in range(self.cfg.epochs):
            self.train_epoch(epoch)
            if self.rank == 0:
                log.info("epoch %d dev loss %.3f", epoch, self.dev())
            dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--max-frames", type=int, default=Config.max_frames)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    Recipe(Config(epochs=a.epochs, max_frames=a.max_frames)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
