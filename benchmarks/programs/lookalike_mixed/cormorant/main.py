import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH, DIM, STEPS = 24, 20, 60


class Split:
    def __init__(self, params):
        self.params = list(params)
        rank, world = dist.get_rank(), dist.get_world_size()
        self.mine = self.params[rank::world]

    @torch.no_grad()
    def squared(self):
        total = torch.zeros(())
        for p in self.mine:
            total += p.grad.norm() ** 2
        dist.all_reduce(total)
        return total


@torch.no_grad()
def clip(split, limit):
    norm = split.squared().sqrt()
    coef = min(1.0, limit / (float(norm) + 1e-6))
    for p in split.params:
        p.grad.mul_(coef)
    return norm


def batches():
    g = torch.Generator().manual_seed(100 + dist.get_rank())
    w = torch.linspace(-1, 1, DIM)
    for _ in range(STEPS):
        x = torch.randn(BATCH, DIM, generator=g)
        yield x, (x @ w).tanh().unsqueeze(1) * 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(31)
    net = torch.nn.Sequential(torch.nn.Linear(DIM, 40), torch.nn.ReLU(), torch.nn.Linear(40, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1))
    model = DDP(net, bucket_cap_mb=1)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    split = Split(model.parameters())
    history = []
    for x, y in batches():
        opt.zero_grad()
        loss = torch.nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        history.append((loss.detach(), clip(split, 0.4)))
        opt.step()
    if dist.get_rank() == 0:
        for i in range(0, STEPS, 15):
            print(i, round(float(history[i][0]), 4), round(float(history[i][1]), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
