import torch
from torch import nn
from torch.utils.data import Dataset


class StateSpace(nn.Module):
    """x[k+1] = x[k] + dt * f(x[k], u[k]), y[k] = g(x[k])"""

    def __init__(self, nx=8, nu=2, ny=3, width=128, dt=0.1):
        super().__init__()
        self.dt = dt
        self.f = nn.Sequential(
            nn.Linear(nx + nu, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, nx),
        )
        self.g = nn.Linear(nx, ny)
        self.encoder = nn.Sequential(nn.Linear(ny, width), nn.GELU(), nn.Linear(width, nx))

    def forward(self, y0, u):
        x = self.encoder(y0)
        outputs = []
        for k in range(u.shape[1]):
            x = x + self.dt * self.f(torch.cat([x, u[:, k]], dim=-1))
            outputs.append(self.g(x))
        return torch.stack(outputs, dim=1)


class TankTrajectories(Dataset):
    """Three coupled tanks driven by two pumps, simulated with a fixed seed."""

    def __init__(self, n, horizon, seed):
        g = torch.Generator().manual_seed(seed)
        u = torch.rand(n, horizon, 2, generator=g)
        y = torch.empty(n, horizon + 1, 3)
        y[:, 0] = torch.rand(n, 3, generator=g)
        for k in range(horizon):
            h = y[:, k].clamp(min=1e-3)
            flow = 0.3 * h.sqrt()
            dh = torch.stack([
                u[:, k, 0] - flow[:, 0],
                0.5 * u[:, k, 1] + flow[:, 0] - flow[:, 1],
                flow[:, 1] - flow[:, 2],
            ], dim=-1)
            y[:, k + 1] = h + 0.1 * dh
        self.u, self.y = u, y

    def __len__(self):
        return len(self.u)

    def __getitem__(self, i):
        return {"y0": self.y[i, 0], "u": self.u[i], "y": self.y[i, 1:]}
