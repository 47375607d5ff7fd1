from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import ThroughputLogger
from packing import PackedBatches

VOCAB, D, STEPS, DOCS = 64, 48, 40, 8


class RecurrentLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.cell = nn.GRU(D, D, batch_first=True)
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.out(self.norm(self.cell(self.emb(ids))[0]))


def masked_loss(logits, target, mask):
    nll = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    return (nll * mask).sum() / mask.sum()


def warmup(step, steps=8):
    return min(1.0, (step + 1) / steps)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    torch.manual_seed(3)
    model = DDP(RecurrentLM())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup)
    logger = ThroughputLogger(every=1000)
    stream = iter(PackedBatches(dist.get_rank(), DOCS, VOCAB))
    for _ in range(STEPS):
        ids, mask = next(stream)
        loss = masked_loss(model(ids[:, :-1]), ids[:, 1:], mask[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        logger.update(loss.item(), ids.size(0) * 20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
