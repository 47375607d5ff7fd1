"""A network that grows by a block per phase; DDP and the optimizer are made anew each time."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from grow import Growing, carry_over

PHASES, STEPS, BATCH = 3, 7, 32


def stream(rank):
    g = torch.Generator().manual_seed(800 + rank)
    while True:
        x = torch.randn(BATCH, 10, generator=g)
        yield x, (x[:, :1] * x[:, 1:2] - x[:, 2:3].abs()).tanh()


def phase_lr(phase):
    return 4e-3 / (1 + phase)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    core, opt = Growing(), None
    torch.manual_seed(500 + rank)
    data = stream(rank)
    for phase in range(PHASES):
        core.grow(seed=1000 + phase)
        model = DDP(core)
        opt = carry_over(opt, torch.optim.AdamW(core.parameters(), lr=phase_lr(phase)))
        for _ in range(STEPS):
            x, y = next(data)
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"phase {phase} blocks {len(core.blocks)} loss {shown.item():.4f}", flush=True)
        del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
