import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from asr import AcousticModel

log = logging.getLogger("asr")


class Utterances(Dataset):
    def __init__(self, n, seed=0, mels=40, tokens=32):
        g = torch.Generator().manual_seed(seed)
        frames = (60 + 50 * torch.rand(n, generator=g)).long()
        frames[torch.randperm(n, generator=g)[: n // 1300]] = 420
        self.frames = frames.tolist()
        self.basis = torch.randn(tokens, mels, generator=g)
        self.tokens, self.mels = tokens, mels

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i + 17)
        t = self.frames[i]
        target = torch.randint(1, self.tokens, (t // 10,), generator=g)
        clean = self.basis[target].repeat_interleave(10, 0)
        clean = torch.cat([clean, torch.zeros(t - len(clean), self.mels)])
        return clean + 0.3 * torch.randn(t, self.mels, generator=g), target


def collate(items):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    return (feats, torch.tensor([len(f) for f, _ in items]),
            torch.cat([y for _, y in items]), torch.tensor([len(y) for _, y in items]))


class Trainer:
    def __init__(self, args):
        self.args = args
        data = Utterances(args.utterances)
        self.sampler = DistributedSampler(data, seed=1)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, collate_fn=collate, drop_last=True)
        torch.manual_seed(0)
        self.model = DDP(AcousticModel())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.ctc = nn.CTCLoss(zero_infinity=True)
        self.skipped = 0

    def step(self, batch):
        feats, lens, target, target_lens = batch
        logp, out_lens = self.model(feats, lens)
        loss = self.ctc(logp.transpose(0, 1), target, out_lens, target_lens)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        return loss.item()

    def epoch(self, index):
        self.sampler.set_epoch(index)
        total, count = 0.0, 0
        for i, batch in enumerate(self.loader):
            self.opt.zero_grad(set_to_none=True)
            try:
                total += self.step(batch)
                count += 1
            except RuntimeError as e:
                if "out of memory" not in str(e):
                    raise
                log.warning("rank %d batch %d: %s, skipping it", dist.get_rank(), i, e)
                self.skipped += 1
                self.opt.zero_grad(set_to_none=True)
        summary = torch.tensor([total, count, self.skipped], dtype=torch.float64)
        rows = [torch.zeros_like(summary) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, summary)
        return torch.stack(rows).sum(0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--utterances", type=int, default=1344)
    p.add_argument("--batch-size", type=int, default=8)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for epoch in range(args.epochs):
        total, count, skipped = trainer.epoch(epoch).tolist()
        if dist.get_rank() == 0:
            log.info("epoch %d loss %.4f batches %d skipped %d", epoch, total / count, count, skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
