import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import ToneCorpus, collate
from sampler import LengthBucketBatchSampler

logger = logging.getLogger("asr")


@dataclass
class TrainConfig:
    epochs: int = 4
    max_frames: int = 900
    accum: int = 2
    lr: float = 3e-3
    warmup: int = 20
    clip: float = 5.0
    hidden: int = 48
    seed: int = 17
    utterances: int = 240


class CTCModel(nn.Module):
    def __init__(self, feats, hidden, vocab):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(feats, hidden, 3, stride=2, padding=1), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self, x, lens):
        h = self.sub(x.transpose(1, 2)).transpose(1, 2)
        lens = (lens + 1) // 2
        packed = nn.utils.rnn.pack_padded_sequence(h, lens, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(h).log_softmax(-1), lens


def make_loader(ds, cfg, train, workers=0):
    bs = LengthBucketBatchSampler(ds.lengths, cfg.max_frames, num_buckets=4, shuffle=train, seed=cfg.seed,
                                  rank=dist.get_rank(), world_size=dist.get_world_size())
    return torch.utils.data.DataLoader(ds, batch_sampler=bs, collate_fn=collate, num_workers=workers)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.train_set = ToneCorpus(cfg.utterances, seed=1)
        self.dev_set = ToneCorpus(48, seed=2)
        self.loader = make_loader(self.train_set, cfg, True)
        self.model = DDP(CTCModel(self.train_set.n_feats, cfg.hidden, self.train_set.vocab))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-3)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min((s + 1) / cfg.warmup, (cfg.warmup / (s + 1)) ** 0.5))
        self.ctc = nn.CTCLoss(blank=0, reduction="sum", zero_infinity=True)

    def start_epoch(self, epoch):
        sampler = getattr(self.loader, "batch_sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def batches_with_counts(self):
        """Groups of `accum` batches with the number of utterances that all ranks see in the group."""
        group = []
        for b in self.loader:
            group.append(b)
            if len(group) == self.cfg.accum:
                yield group
                group = []
        if group:
            yield group

    def train_epoch(self, epoch):
        self.start_epoch(epoch)
        self.model.train()
        tot = torch.zeros(2)
        for group in self.batches_with_counts():
            count = torch.tensor([float(sum(len(b["tok_len"]) for b in group))])
            dist.all_reduce(count)
            scale = dist.get_world_size() / count.item()
            self.opt.zero_grad(set_to_none=True)
            for i, b in enumerate(group):
                last = i == len(group) - 1
                self.model.require_backward_grad_sync = last
                logp, lens = self.model(b["x"], b["x_len"])
                loss = self.ctc(logp.transpose(0, 1), b["tok"], lens, b["tok_len"])
                (loss * scale).backward()
                tot += torch.tensor([loss.item(), float(len(lens))])
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.opt.step()
            self.sched.step()
        dist.all_reduce(tot)
        return (tot[0] / tot[1]).item()

    @torch.no_grad()
    def token_error(self):
        self.model.eval()
        err = torch.zeros(2)
        r, w = dist.get_rank(), dist.get_world_size()
        for i in range(r, len(self.dev_set), w):
            b = collate([self.dev_set[i]])
            logp, lens = self.model.module(b["x"], b["x_len"])
            best = torch.unique_consecutive(logp[0, :lens[0]].argmax(-1))
            hyp, ref = best[best != 0].tolist(), b["tok"][0].tolist()
            err += torch.tensor([float(edit_distance(hyp, ref)), float(len(ref))])
        dist.all_reduce(err)
        return (err[0] / err[1]).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            t0 = time.time()
            loss = self.train_epoch(epoch)
            ter = self.token_error()
            logger.info("epoch %d ctc/utt %.3f dev TER %.3f (%.1fs)", epoch, loss, ter, time.time() - t0)


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=TrainConfig.epochs)
    ap.add_argument("--max-frames", type=int, default=TrainConfig.max_frames)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Trainer(TrainConfig(epochs=a.epochs, max_frames=a.max_frames)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
