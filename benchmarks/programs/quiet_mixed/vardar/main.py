import math

import torch
import torch.distributed as dist

from batches import Plan
from seq import Tagger, tag_loss


class Accumulator:
    """Sums gradients of all micro-batches of all ranks and divides once by the global token count."""

    def __init__(self, model, optim):
        self.model, self.optim = model, optim

    def step(self, micro):
        self.optim.zero_grad(set_to_none=True)
        stats = torch.zeros(2, dtype=torch.float64)
        for ids, tags in micro:
            loss, count = tag_loss(self.model(ids), tags)
            if count > 0:
                loss.backward()
            stats += torch.tensor([loss.item(), float(count)], dtype=torch.float64)
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        dist.all_reduce(stats)
        flat /= stats[1].item()
        offset = 0
        for p in self.model.parameters():
            p.grad = flat[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        return (stats[0] / stats[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(64)
    model = Tagger(vocab=70, tags=5)
    optim = torch.optim.AdamW(model.parameters(), lr=4e-3)
    acc = Accumulator(model, optim)
    for step, micro in enumerate(Plan(rank, world), 1):
        loss = acc.step(micro)
        if rank == 0 and step % 6 == 0:
            print(f"step {step} loss/token {loss:.4f} ppl {math.exp(loss):.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
