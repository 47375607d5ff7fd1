import argparse

import torch
import torch.distributed as dist
from torch import nn

from hier import TwoLevel, flatten_grads, scatter_grads

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=40)
p.add_argument("--box", type=int, default=2, help="processes per box")
p.add_argument("--batch", type=int, default=24)
p.add_argument("--lr", type=float, default=0.05)


def physics_batch(size, g):
    """Damped pendulum: predict the angle one second later."""
    q = torch.rand(size, 3, generator=g) * torch.tensor([3.0, 2.0, 0.5])
    x, v = q[:, 0] - 1.5, q[:, 1] - 1.0
    for _ in range(20):
        v = v + 0.05 * (-torch.sin(x) - q[:, 2] * v)
        x = x + 0.05 * v
    return q, x.unsqueeze(1)


def build():
    return nn.Sequential(nn.Linear(3, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1))


def share_initial(net):
    for t in net.state_dict().values():
        dist.broadcast(t, src=0)


def main():
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    comm = TwoLevel(a.box)
    net = build()
    share_initial(net)
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=a.lr, momentum=0.9)
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(a.steps):
        q, target = physics_batch(a.batch, g)
        loss = (net(q) - target).pow(2).mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        scatter_grads(comm.mean_(flatten_grads(params)), params)
        opt.step()
        if step % 8 == 7:
            shown = comm.mean_(loss.detach().reshape(1).clone())
            if rank == 0:
                print(f"{step + 1:3d}  mse {shown.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
