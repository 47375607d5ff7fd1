import torch
import torch.distributed as dist
import torch.nn.functional as F

from lib.mlp import Tower
from lib.schedule import Plan


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(52)
    model = Tower(d_in=10, d=32, depth=3)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    plan = Plan(model, until=24)
    g = torch.Generator().manual_seed(5)
    for step in range(54):
        plan.before(step)
        x = torch.randn(32, 10, generator=g)
        y = x[:, :3].prod(1).tanh()
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        plan.after_backward()
        opt.step()
        if dist.get_rank() == 0 and step % 18 == 0:
            print(f"step {step} loss {float(loss.detach()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
