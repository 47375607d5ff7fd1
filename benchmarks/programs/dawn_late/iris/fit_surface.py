"""Deep residual MLP regression, three pipeline stages on three processes."""
import torch
import torch.distributed as dist
import torch.nn as nn

from engine import StageEngine, scale_to_norm

WIDTH, MICRO, ROWS, STEPS = 128, 4, 32, 80


class Res(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.n = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(self.n(x))))


def make_stage(rank, world):
    body = [Res(WIDTH) for _ in range(3)]
    if rank == 0:
        body = [nn.Linear(6, WIDTH)] + body
    if rank == world - 1:
        body = body + [nn.Linear(WIDTH, 1)]
    return nn.Sequential(*body)


def surface(gen, n):
    x = torch.rand(n, 6, generator=gen) * 4 - 2
    y = 4 * torch.sin(2 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2 - 3 * x[:, 3:4] * x[:, 4:5]
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20 + rank)
    engine = StageEngine(make_stage(rank, world), rank, world, (ROWS, WIDTH), (ROWS, WIDTH))
    opt = torch.optim.Adam(engine.module.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(8)  # the same on each stage: the first uses x, the last y
    for step in range(STEPS):
        x, y = surface(gen, MICRO * ROWS)
        opt.zero_grad()
        losses = []
        for xm, ym in zip(x.split(ROWS), y.split(ROWS)):
            out = engine.forward(xm if engine.first else None)
            losses.append((out - ym).pow(2).mean() / MICRO if engine.last else None)
        for loss in losses:
            engine.backward(loss)
        norm = scale_to_norm(engine.module, 5.0)
        opt.step()
        if engine.last and step % 10 == 0:
            print(f"step {step:3d} mse {sum(losses).item():8.3f} grad norm {norm:7.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
