"""Streaming pretraining in job segments: each segment restores everything from the last checkpoint,
as after a requeue of the job."""
import argparse
import logging
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import DocumentSource, PackedStream
from train_utils import load_checkpoint, save_checkpoint

log = logging.getLogger("stream-pretrain")


class RecurrentLM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, block):
        h, _ = self.rnn(self.emb(block[:, :-1]))
        return F.cross_entropy(self.head(h).flatten(0, 1), block[:, 1:].flatten())


def make_loader(args, rank, world, state):
    dataset = PackedStream(DocumentSource(args.vocab, args.seed), args.seq_len, rank, world)
    if state is not None:
        dataset.load_state_dict(state)
    return DataLoader(dataset, batch_size=args.batch, num_workers=1, prefetch_factor=2), dataset


def run_segment(args, until, folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = RecurrentLM(args.vocab, args.dim)
    ckpt, data_state = load_checkpoint(folder)
    step = 0
    if ckpt is not None:
        model.load_state_dict(ckpt["model"])
        step = ckpt["step"]
    ddp = DDP(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    if ckpt is not None:
        optimizer.load_state_dict(ckpt["optimizer"])
    loader, dataset = make_loader(args, rank, world, data_state)
    log.info("segment from step %d to %d", step, until)

    t0 = time.time()
    for block in loader:
        loss = ddp(block)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            log.info("step %d loss %.4f (%.1fs)", step, mean.item() / world, time.time() - t0)
        if step == until:
            break
    save_checkpoint(folder, step, ddp.module, optimizer, dataset.state_dict())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--segments", type=int, default=3)
    ap.add_argument("--segment-steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq-len", type=int, default=32)
    ap.add_argument("--vocab", type=int, default=96)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    box = [tempfile.mkdtemp(prefix="stream-") if rank == 0 else None]
    dist.broadcast_object_list(box)
    for i in range(args.segments):
        run_segment(args, (i + 1) * args.segment_steps, box[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
