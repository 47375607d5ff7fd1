"""Top-k gradient compression with error feedback as a DDP communication hook."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class TopK:
    """What is not sent in this step is remembered on this rank and added in the next one."""

    def __init__(self, share: float, warmup: int):
        self.share, self.warmup = share, warmup
        self.memory, self.calls = {}, {}


def topk_hook(state: TopK, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    flat, world = bucket.buffer(), dist.get_world_size()
    key = (bucket.index(), flat.numel())
    state.calls[key] = state.calls.get(key, 0) + 1
    if state.calls[key] > state.warmup:
        flat.add_(state.memory.setdefault(key, torch.zeros_like(flat)))
        keep = flat.abs().topk(max(1, int(state.share * flat.numel()))).indices
        sparse = torch.zeros_like(flat)
        sparse[keep] = flat[keep]
        state.memory[key].copy_(flat - sparse)
        flat.copy_(sparse)
    fut = dist.all_reduce(flat, async_op=True).get_future()
    return fut.then(lambda f: f.value()[0].div_(world))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(900, 24, generator=g)
    y = (x @ torch.randn(24, 6, generator=g)).argmax(1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=25, sampler=sampler)
    net = DDP(nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 6)))
    net.register_comm_hook(TopK(share=0.05, warmup=5), topk_hook)
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.cross_entropy(net(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
