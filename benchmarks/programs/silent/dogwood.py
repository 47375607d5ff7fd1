import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class CurveFit:
    def __init__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        g = torch.Generator().manual_seed(0)
        x = torch.linspace(-2, 2, 120)[:, None]
        y = torch.sin(2 * x) + 0.05 * torch.randn(120, 1, generator=g)
        self.x, self.y = x[rank::world], y[rank::world]
        torch.manual_seed(9)
        self.model = DDP(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
        self.opt = torch.optim.LBFGS(self.model.parameters(), lr=0.5, max_iter=4, history_size=8)
        self.world = world

    def closure(self):
        self.opt.zero_grad()
        loss = F.mse_loss(self.model(self.x), self.y)
        loss.backward()
        shared = loss.detach().clone()
        dist.all_reduce(shared)
        return shared / self.world

    def run(self, iterations=26):
        for it in range(iterations):
            loss = self.opt.step(self.closure)
            if it % 8 == 7 and dist.get_rank() == 0:
                print(f"iter {it} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    CurveFit().run()
    dist.destroy_process_group()
