import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from snapshots import SnapshotWriter

log = logging.getLogger("train")


class TinyLM(nn.Module):
    def __init__(self, vocab=128, dim=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.embed(tokens), mask=mask, is_causal=True))


def token_batch(step, rank, world_size, size=16, length=32, vocab=128):
    gen = torch.Generator().manual_seed(step * world_size + rank)
    start = torch.randint(0, vocab, (size, 1), generator=gen)
    stride = torch.randint(1, 4, (size, 1), generator=gen)
    return (start + stride * torch.arange(length + 1)) % vocab


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--snapshot-every", type=int, default=30)
    p.add_argument("--flush-seconds", type=float, default=4.0)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    box = [args.out]
    if rank == 0 and args.out is None:
        box[0] = tempfile.mkdtemp(prefix="badger-")
    dist.broadcast_object_list(box, src=0)

    torch.manual_seed(0)
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    writer = SnapshotWriter(box[0], args.flush_seconds)
    try:
        for step in range(1, args.steps + 1):
            seq = token_batch(step, rank, world_size)
            logits = model(seq[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % args.snapshot_every == 0:
                writer.submit(step, model.module, opt)
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if rank == 0:
                    log.info("step %d loss %.4f", step, mean.item() / world_size)
    finally:
        writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
