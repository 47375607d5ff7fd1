import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICRO, MB, D = 4, 8, 48


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(100, D)
        self.mix = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, ids):
        return self.mix(self.emb(ids))


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))
        self.out = nn.Linear(D, 100)

    def forward(self, h):
        return self.out(h + self.mix(h))


def loss_fn(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batches(steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 100, (MICRO * MB, 12), generator=g)
        yield ids, (ids * 7 + 3) % 100


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == 2
    torch.manual_seed(rank)
    module = Front() if rank == 0 else Back()
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=loss_fn)
    opt = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for step, (ids, target) in enumerate(batches(60)):
        opt.zero_grad()
        if rank == 0:
            schedule.step(ids)
        else:
            losses = []
            schedule.step(target=target, losses=losses)
        opt.step()
        if rank == 1 and step % 20 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
    torch.save(module.state_dict(), f"stage{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
