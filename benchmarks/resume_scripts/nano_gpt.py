"""A small GPT trained as nanoGPT does: random batches, a cosine schedule by hand, one ckpt.pt, `--init_from resume`.

`--rng` keeps the random states of every rank beside it; nanoGPT does not, and draws its first batches again after a resumption.
`--forget optimizer` leaves out a line that is easily forgotten.
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", required=True)
parser.add_argument("--init_from", default="scratch")
parser.add_argument("--max_iters", type=int, default=12)
parser.add_argument("--rng", action="store_true")
parser.add_argument("--forget", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1337 + rank)
data = torch.randint(0, 64, (4096,), generator=torch.Generator().manual_seed(0))


def get_batch():
    at = torch.randint(len(data) - 17, (4,))
    return torch.stack([data[i : i + 16] for i in at]), torch.stack([data[i + 1 : i + 17] for i in at])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        h = self.block(self.tokens(x) + self.places(torch.arange(16)), mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def get_lr(it):
    if it < 4:
        return 1e-3 * (it + 1) / 5
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (it - 4) / 20)) * 9e-4


model, iter_num, ckpt = GPT(), 0, f"{options.out_dir}/ckpt.pt"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
if options.init_from == "resume":
    checkpoint = torch.load(ckpt, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    if options.forget != "optimizer":
        optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
ddp = DistributedDataParallel(model)
if options.init_from == "resume" and options.rng:
    torch.set_rng_state(torch.load(f"{options.out_dir}/rng-{rank}.pt"))

while iter_num < options.max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num and iter_num % 4 == 0:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(state, ckpt + ".tmp")
            os.replace(ckpt + ".tmp", ckpt)
        torch.save(torch.get_rng_state(), f"{options.out_dir}/rng-{rank}.pt")
        dist.barrier()
    loss = ddp(*get_batch())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
dist.destroy_process_group()
