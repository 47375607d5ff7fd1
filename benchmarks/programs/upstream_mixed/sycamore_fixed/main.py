"""Chat fine-tuning of a compiled model."""
import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from data import Conversations

torch._dynamo.config.recompile_limit = 64


class Model(nn.Module):
    def __init__(self, vocab=128, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        h = self.embed(ids)
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        h = h + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(h)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(torch.compile(Model(), backend="aot_eager", dynamic=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    start = time.time()
    for step, (x, y) in enumerate(Conversations(24, rank)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 6 == 5:
            print(f"step {step} loss {loss.item():.4f} {(time.time() - start) / (step + 1):.2f} s/step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
