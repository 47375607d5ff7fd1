"""Deep ensemble: one member per process, with its own width, depth, seed, bootstrap and learning rate."""
import torch
import torch.distributed as dist
from torch import nn

MEMBERS = [dict(width=32, depth=1, lr=3e-3, act=nn.ReLU), dict(width=64, depth=2, lr=1e-3, act=nn.Tanh),
           dict(width=24, depth=3, lr=2e-3, act=nn.GELU)]


def member(cfg, din=8):
    layers, d = [], din
    for _ in range(cfg["depth"]):
        layers += [nn.Linear(d, cfg["width"]), cfg["act"]()]
        d = cfg["width"]
    return nn.Sequential(*layers, nn.Linear(d, 2))


def nll(out, y):
    mu, log_var = out[:, 0], out[:, 1].clamp(-6, 4)
    return (0.5 * (log_var + (y - mu) ** 2 / log_var.exp())).mean()


def problem(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, torch.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.1 * torch.randn(n, generator=g)


@torch.no_grad()
def mixture(model, x):
    out = model(x)
    parts = [torch.empty_like(out) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, out)
    p = torch.stack(parts)
    mu = p[..., 0].mean(0)
    var = (p[..., 1].clamp(-6, 4).exp() + p[..., 0] ** 2).mean(0) - mu ** 2
    return mu, var


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = MEMBERS[rank % len(MEMBERS)]
    torch.manual_seed(400 + rank)
    model = member(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    x, y = problem(400, 0)
    boot = torch.randint(0, len(x), (len(x),))
    x, y = x[boot], y[boot]
    xv, yv = problem(100, 1)
    for epoch in range(12):
        for idx in torch.randperm(len(x)).split(32):
            loss = nll(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 4 == 3:
            mu, var = mixture(model, xv)
            if rank == 0:
                print(f"epoch {epoch} ensemble rmse {(mu - yv).pow(2).mean().sqrt():.3f} mean var {var.mean():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
