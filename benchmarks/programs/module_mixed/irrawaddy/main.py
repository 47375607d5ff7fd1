import torch
import torch.distributed as dist
import torch.nn as nn

from delayed import DelayedAverage

STEPS, BATCH = 24, 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x))


def batches(rank):
    g = torch.Generator().manual_seed(400 + rank)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 10, generator=g)
        yield x, (x[:, :3].prod(1, keepdim=True)).tanh()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(26)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
    average = DelayedAverage(net.parameters())
    for step, (x, y) in enumerate(batches(rank)):
        loss = (net(x) - y).square().mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        if average.exchange():
            opt.step()
        if step % 6 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if average.flush():
        opt.step()
    check = nn.utils.parameters_to_vector(net.parameters()).detach()
    other = check.clone()
    dist.all_reduce(other, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"largest difference {(other - check).abs().max().item():.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
