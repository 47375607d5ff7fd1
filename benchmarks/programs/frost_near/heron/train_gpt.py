import math
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

dist.init_process_group(backend="gloo")
ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
master_process = ddp_rank == 0
torch.manual_seed(1337)

B, T = 4, 32
total_batch_size = 4 * B * T * ddp_world_size
grad_accum_steps = total_batch_size // (B * T * ddp_world_size)
max_steps, warmup_steps, max_lr, min_lr = 24, 4, 3e-3, 3e-4


class TokenStream:
    """Walks through the corpus; every process takes its own stripe of each chunk."""

    def __init__(self, B, T, rank, world, length=60000, vocab=64):
        g = torch.Generator().manual_seed(7)
        jumps = torch.randint(1, 5, (length,), generator=g)
        self.tokens = torch.cumsum(jumps, 0) % vocab
        self.B, self.T, self.rank, self.world = B, T, rank, world
        self.pos = B * T * rank

    def next_batch(self):
        B, T = self.B, self.T
        buf = self.tokens[self.pos:self.pos + B * T + 1]
        self.pos += B * T * self.world
        if self.pos + B * T + 1 > len(self.tokens):
            self.pos = B * T * self.rank
        return buf[:-1].view(B, T), buf[1:].view(B, T)


def get_lr(it):
    if it < warmup_steps:
        return max_lr * (it + 1) / warmup_steps
    ratio = (it - warmup_steps) / (max_steps - warmup_steps)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (max_lr - min_lr)


train_loader = TokenStream(B, T, ddp_rank, ddp_world_size)
model = DDP(GPT(GPTConfig(block=T)))
optimizer = torch.optim.AdamW(model.parameters(), lr=max_lr, betas=(0.9, 0.95))

for step in range(max_steps):
    t0 = time.time()
    optimizer.zero_grad()
    loss_accum = torch.zeros(())
    for micro_step in range(grad_accum_steps):
        x, y = train_loader.next_batch()
        logits, loss = model(x, y)
        loss = loss / grad_accum_steps
        loss_accum += loss.detach()
        model.require_backward_grad_sync = (micro_step == grad_accum_steps - 1)
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    lr = get_lr(step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    if step % 6 == 0 or step == max_steps - 1:
        dist.all_reduce(loss_accum)
        loss_accum /= ddp_world_size
        if master_process:
            dt = time.time() - t0
            print(f"step {step:4d} | loss {loss_accum.item():.4f} | norm {norm:.3f} "
                  f"| lr {lr:.2e} | {dt * 1000:.0f} ms")

dist.destroy_process_group()
