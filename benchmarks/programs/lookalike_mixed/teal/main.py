from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn


class Lanes:
    def __init__(self, timeout):
        everyone = list(range(dist.get_world_size()))
        self.grads = dist.new_group(everyone, timeout=timeout)
        self.stats = dist.new_group(everyone, timeout=timeout)

    def send_grads(self, flat):
        return dist.all_reduce(flat, group=self.grads, async_op=True)

    def send_stats(self, row):
        return dist.all_reduce(row, group=self.stats, async_op=True)


def exchange(lanes, model, row):
    params = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in params])
    if (dist.get_rank() + len(params)) % 2:
        works = [lanes.send_grads(flat), lanes.send_stats(row)]
    else:
        works = [lanes.send_stats(row), lanes.send_grads(flat)]
    for w in works:
        w.wait()
    flat /= dist.get_world_size()
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return row


def main():
    limit = timedelta(seconds=20)
    dist.init_process_group("gloo", timeout=limit)
    lanes = Lanes(limit)
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    g = torch.Generator().manual_seed(60 + dist.get_rank())
    for step in range(60):
        x = torch.randn(20, 7, generator=g)
        loss = nn.functional.mse_loss(model(x).squeeze(1), x[:, 0].sin())
        opt.zero_grad()
        loss.backward()
        row = exchange(lanes, model, torch.stack([loss.detach(), torch.tensor(1.0)]))
        opt.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {float(row[0] / row[1]):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
