"""Codistillation: each process trains an own student of another width and learns from its peers' predictions."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 10


class Student(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers, n = [], 32
        for _ in range(depth):
            layers += [nn.Linear(n, width), nn.LayerNorm(width), nn.GELU()]
            n = width
        self.body, self.head = nn.Sequential(*layers), nn.Linear(n, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def labelled(gen, n, proto):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = torch.tanh(proto[y] + 1.2 * torch.randn(n, 32, generator=gen))
    return x, y


def peer_probabilities(logits, temperature):
    """Mean of the other processes' softened predictions for the same inputs."""
    own = (logits.detach() / temperature).softmax(-1)
    total = own.clone()
    dist.all_reduce(total)
    return (total - own) / (dist.get_world_size() - 1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50 + rank)
    student = Student(width=(64, 96, 128)[rank % 3], depth=2 + rank % 2)
    opt = torch.optim.AdamW(student.parameters(), lr=(2e-3, 1.5e-3, 1e-3)[rank % 3])
    proto = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(1)) * 0.8
    shared = torch.Generator().manual_seed(2)
    held_out = labelled(torch.Generator().manual_seed(3), 1000, proto)
    temperature, steps, burn_in = 2.0, 240, 60
    for step in range(steps):
        x, y = labelled(shared, 96, proto)
        logits = student(x)
        target = peer_probabilities(logits, temperature)
        weight = min(1.0, max(0.0, (step - burn_in) / 60))
        kd = F.kl_div((logits / temperature).log_softmax(-1), target, reduction="batchmean") * temperature ** 2
        loss = F.cross_entropy(logits, y) + weight * kd
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 60 == 0:
            student.eval()
            with torch.no_grad():
                acc = (student(held_out[0]).argmax(1) == held_out[1]).float().mean()
            student.train()
            row = torch.zeros(world)
            row[rank] = acc
            dist.all_reduce(row)
            if rank == 0:
                print(f"step {step + 1} accuracy of each student {[round(a, 3) for a in row.tolist()]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
