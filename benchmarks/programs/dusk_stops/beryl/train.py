"""Two-stage pretraining: short sequences first, then filtered long ones.

Packing is done once by rank 0 per stage; the others pick the packed file up from the work folder.
"""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from packing import PackSpec, prepare_packed

log = logging.getLogger("pretrain")

STAGES = [
    PackSpec(seq_len=48, stride=24, seed=17),
    PackSpec(seq_len=128, stride=64, seed=17, filters=("dedup", "quality")),
]


class TinyLM(nn.Module):
    def __init__(self, vocab=128, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(256, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.full((t, t), float("-inf")).triu(1)
        x = self.emb(ids) + self.pos.weight[:t]
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x)


def run_stage(model, opt, data, args, rank, epoch):
    sampler = DistributedSampler(data, shuffle=True, seed=3, drop_last=True)
    sampler.set_epoch(epoch)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    for i, (ids,) in enumerate(loader):
        if i >= args.steps_per_stage:
            break
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if rank == 0 and (i + 1) % 20 == 0:
            log.info("stage %d step %d loss %.3f", epoch, i + 1, loss.item())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--steps-per-stage", type=int, default=100)
    ap.add_argument("--documents", type=int, default=2500)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None, help="work folder, shared by the ranks")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s", datefmt="%H:%M:%S")
    box = [args.out or (tempfile.mkdtemp(prefix="pack_") if rank == 0 else None)]
    dist.broadcast_object_list(box)
    os.makedirs(box[0], exist_ok=True)

    torch.manual_seed(0)
    model = DDP(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch, spec in enumerate(STAGES):
        packed = prepare_packed(box[0], spec, rank, args.documents)
        run_stage(model, opt, TensorDataset(packed), args, rank, epoch)
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(box[0], "model.pt"))
        log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
