import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from corpus import PAD, ToyTranslation, collate
from trainer import TokenLoss, Trainer


class AttentionSeq2Seq(nn.Module):
    """Recurrent encoder/decoder with dot-product attention."""

    def __init__(self, vocab=400, dim=96):
        super().__init__()
        self.src = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.tgt = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.enc = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.dec = nn.GRU(dim, dim, batch_first=True)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, src, prev):
        memory, _ = self.enc(self.src(src))
        h, _ = self.dec(self.tgt(prev))
        score = (h @ memory.transpose(1, 2)).masked_fill((src == PAD)[:, None], -1e9)
        return self.out(torch.tanh(self.mix(torch.cat([h, score.softmax(-1) @ memory], -1))))


def main():
    p = argparse.ArgumentParser("translation")
    p.add_argument("--sentences", type=int, default=2592)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.5)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--local-tokens", action="store_true", help="normalise by the tokens of the own batch")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(3)
    train, valid = ToyTranslation(args.sentences), ToyTranslation(300, seed=1)
    loader = DataLoader(train, args.batch_size, sampler=DistributedSampler(train, seed=3, drop_last=True),
                        collate_fn=collate, drop_last=True)
    valid_loader = DataLoader(Subset(valid, range(rank, len(valid), world)), 50, collate_fn=collate)

    model = DistributedDataParallel(AttentionSeq2Seq())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=20)
    trainer = Trainer(model, TokenLoss(global_tokens=not args.local_tokens), optimizer, scheduler)
    for epoch in range(args.epochs):
        trainer.train_epoch(loader, epoch)
        ppl = trainer.validate(valid_loader)
        logging.info("epoch %d valid ppl %.2f", epoch, ppl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
