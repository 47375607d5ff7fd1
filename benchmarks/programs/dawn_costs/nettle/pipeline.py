"""Three-stage pipeline with hand-written sends and receives (all forwards, then all backwards)."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

WIDTH, CLASSES, MICRO, ROWS, STEPS = 128, 8, 4, 32, 60


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Stage(nn.Module):
    """The middle stage holds most of the depth: it runs on the largest machine."""

    DEPTH = (1, 10, 1)

    def __init__(self, index):
        super().__init__()
        self.stem = nn.Linear(16, WIDTH) if index == 0 else nn.Identity()
        self.blocks = nn.ModuleList(block(WIDTH) for _ in range(self.DEPTH[index]))
        self.head = nn.Linear(WIDTH, CLASSES) if index == 2 else nn.Identity()

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + b(x)
        return self.head(x)


def micro_batch(step, micro, teacher):
    g = torch.Generator().manual_seed(step * MICRO + micro)
    x = torch.randn(ROWS, 16, generator=g)
    return x, (x @ teacher).argmax(1)


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    assert last == 2, "one rank for each of the three stages"
    torch.manual_seed(50 + rank)
    stage = Stage(rank)
    opt = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    teacher = torch.randn(16, CLASSES, generator=torch.Generator().manual_seed(4))
    began = time.perf_counter()

    for step in range(1, STEPS + 1):
        inputs, outputs, pending, total = [], [], [], 0.0
        for m in range(MICRO):
            x, y = micro_batch(step, m, teacher)
            if rank > 0:
                x = torch.empty(ROWS, WIDTH)
                dist.recv(x, src=rank - 1, tag=m)
                x.requires_grad_()
            out = stage(x)
            if rank < last:
                payload = out.detach().contiguous()
                pending.append((dist.isend(payload, dst=rank + 1, tag=m), payload))
            else:
                out = F.cross_entropy(out, y) / MICRO
                total += out.item()
            inputs.append(x)
            outputs.append(out)
        for m in range(MICRO):
            if rank == last:
                outputs[m].backward()
            else:
                grad = torch.empty(ROWS, WIDTH)
                dist.recv(grad, src=rank + 1, tag=MICRO + m)
                outputs[m].backward(grad)
            if rank > 0:
                pending.append((dist.isend(inputs[m].grad, dst=rank - 1, tag=MICRO + m), inputs[m].grad))
        for work, _ in pending:
            work.wait()
        opt.step()
        opt.zero_grad()
        if step % 6 == 0 and rank == last:
            print(f"step {step} loss {total:.4f} {1e3 * (time.perf_counter() - began) / 6:.0f} ms", flush=True)
            began = time.perf_counter()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
