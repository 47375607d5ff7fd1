import json

import torch
import torch.nn as nn


def build_records(n, seed=0):
    """Fake manifest: json lines, one trial per line."""
    g = torch.Generator().manual_seed(seed)
    lines = []
    for i in range(n):
        rec = {"id": i, "lr": 10 ** float(-3 * torch.rand(1, generator=g)), "width": 8 * (1 + i % 4)}
        lines.append(json.dumps(rec))
    lines[5] = lines[5].replace('"width": 16', '"width": "2x8"')
    return lines


def run_trial(line):
    rec = json.loads(line)
    torch.manual_seed(rec["id"])
    width = int(rec["width"])
    net = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 1))
    opt = torch.optim.SGD(net.parameters(), lr=rec["lr"])
    x = torch.randn(64, 6)
    y = x[:, :1] - x[:, 1:2]
    for _ in range(40):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
    return {"id": rec["id"], "loss": loss.item()}
