"""Low-rank adaptation of a frozen encoder, data parallel."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from adapters import inject, parse_targets
from backbone import Encoder

log = logging.getLogger("lora")


class TokenClasses:
    """The class is decided by which of eight marker pairs occurs in order in the sequence."""

    def __init__(self, vocab, length, classes, seed):
        self.vocab, self.length, self.classes = vocab, length, classes
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n):
        ids = torch.randint(2 * self.classes, self.vocab, (n, self.length), generator=self.gen)
        y = torch.randint(0, self.classes, (n,), generator=self.gen)
        at = torch.randint(0, self.length - 1, (n,), generator=self.gen)
        rows = torch.arange(n)
        ids[rows, at] = 2 * y
        ids[rows, at + 1] = 2 * ((y + 3) % self.classes) + 1
        return ids, y


@torch.no_grad()
def evaluate(model, ids, labels):
    model.eval()
    loss = F.cross_entropy(model.module(ids), labels)
    model.train()
    return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lora_targets", default="q_proj, k_proj, v_proj, o_proj, fc_in, fc_out")
    p.add_argument("--lora_rank", type=int, default=8)
    p.add_argument("--lora_alpha", type=float, default=16.0)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    model = Encoder(vocab=64, dim=args.dim)
    names = inject(model, parse_targets(args.lora_targets), args.dim, args.lora_rank, args.lora_alpha)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if rank == 0:
        log.info("%d trainable tensors, %d weights", len(names), sum(p.numel() for p in trainable))
    model = DDP(model)
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    train = TokenClasses(64, 16, 8, seed=args.seed + 1 + rank)
    val_ids, val_labels = TokenClasses(64, 16, 8, seed=999).sample(256)

    for step in range(args.steps):
        ids, labels = train.sample(args.batch_size)
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0 or step == args.steps - 1:
            val = evaluate(model, val_ids, val_labels)
            if rank == 0:
                log.info("step %3d train %.4f val %.4f", step, loss.item(), val.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
