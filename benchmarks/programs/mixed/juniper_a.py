import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP


class Wide(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(40, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 5))

    def forward(self, x):
        return self.layers(x)


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank-approx", type=int, default=4)
    parser.add_argument("--start", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    return parser.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Wide(), bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=args.rank_approx, start_powerSGD_iter=args.start,
        use_error_feedback=True, warm_start=True, min_compression_rate=1.5)
    model.register_comm_hook(state, default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gen = torch.Generator().manual_seed(60 + rank)
    teacher = torch.randn(40, 5, generator=torch.Generator().manual_seed(2))
    for step in range(args.steps):
        x = torch.randn(32, 40, generator=gen)
        y = (x @ teacher).argmax(-1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 29:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
