import time

import torch
import torch.distributed as dist


class ThroughputLogger:
    """Reports every `every` tokens: loss and tokens per second over all ranks."""

    def __init__(self, every):
        self.every = every
        self.group = dist.new_group()
        self.tokens = self.reported = 0
        self.loss_sum, self.steps = 0.0, 0
        self.clock = time.perf_counter()

    def update(self, loss, n_tokens):
        self.loss_sum += loss
        self.steps += 1
        self.tokens += n_tokens
        if self.tokens // self.every > self.reported:
            self.reported = self.tokens // self.every
            self.flush()

    def flush(self):
        now = time.perf_counter()
        row = torch.tensor([self.loss_sum, float(self.steps), float(self.tokens)], dtype=torch.double)
        dist.all_reduce(row, group=self.group)
        if dist.get_rank() == 0:
            print(f"tokens {int(row[2])} loss {row[0] / row[1]:.4f} {row[2] / (now - self.clock):.0f} tok/s", flush=True)
        self.loss_sum, self.steps = 0.0, 0
