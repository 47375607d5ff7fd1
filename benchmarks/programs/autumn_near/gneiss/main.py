import argparse

import torch
import torch.distributed as dist

from groups import Mesh
from model import Net, loss_fn


def sync(params, group, divisor):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat, group=group)
    flat /= divisor
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--expert-parallel", type=int, default=2)
    ap.add_argument("--steps", type=int, default=75)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    mesh = Mesh(args.expert_parallel)
    torch.manual_seed(90)
    net = Net(64, 48, 6, mesh)
    experts = list(net.moe.expert.parameters())
    inner = {id(p) for p in experts}
    dense = [p for p in net.parameters() if id(p) not in inner]
    opt = torch.optim.SGD([dict(params=dense), dict(params=experts, weight_decay=1e-4)], lr=args.lr, momentum=0.9)
    weight = torch.randn(64, 6)
    gen = torch.Generator().manual_seed(400 + mesh.rank)

    for step in range(1, args.steps + 1):
        tok = torch.randint(64, (args.batch, 12), generator=gen)
        y = weight[tok].sum(1).argmax(-1)
        out = net(tok)
        loss = loss_fn(out, y)
        opt.zero_grad()
        loss.backward()
        sync(dense, None, mesh.world)
        sync(experts, mesh.edp_group, mesh.dp * mesh.ep)
        opt.step()
        if step % 15 == 0:
            v = torch.stack([loss.detach(), (out.argmax(-1) == y).float().mean()])
            dist.all_reduce(v)
            if mesh.rank == 0:
                print(f"step {step} loss {v[0] / mesh.world:.3f} acc {v[1] / mesh.world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
