"""Three-stage pipeline; labels travel from the first stage to the last."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

WIDTH, CLASSES = 32, 6


def build_stage(stage, stages):
    torch.manual_seed(40 + stage)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    if stage == stages - 1:
        layers.append(nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(*layers)


class Links:
    """What a stage receives from and hands to its neighbours."""

    def __init__(self):
        self.stage, self.stages = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.stage == 0, self.stage == self.stages - 1

    def forward_in(self, size):
        buffer = torch.empty(size, WIDTH)
        dist.recv(buffer, src=self.stage - 1)
        return buffer.requires_grad_()

    def forward_out(self, tensor):
        dist.send(tensor.detach().contiguous(), dst=self.stage + 1)

    def backward_in(self, size):
        buffer = torch.empty(size, WIDTH)
        dist.recv(buffer, src=self.stage + 1)
        return buffer

    def backward_out(self, tensor):
        dist.send(tensor.contiguous(), dst=self.stage - 1)

    def push_labels(self, labels):
        dist.send(labels, dst=self.stages - 1, tag=7)

    def pull_labels(self, size):
        labels = torch.empty(size, dtype=torch.long)
        dist.recv(labels, src=0, tag=7)
        return labels


def load_batch(step, size):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(size, WIDTH, generator=gen)
    return x, x[:, :CLASSES].argmax(dim=1)


def run_step(links, stage, step, size):
    labels = None
    if links.first:
        x, labels = load_batch(step, size)
    else:
        x = links.forward_in(size)
    out = stage(x)
    if links.last:
        labels = links.pull_labels(size)
        loss = nn.functional.cross_entropy(out, labels)
        loss.backward()
        links.backward_out(x.grad)
        return loss.item()
    links.forward_out(out)
    if links.first:
        links.push_labels(labels)
    out.backward(links.backward_in(size))
    if not links.first:
        links.backward_out(x.grad)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    links = Links()
    stage = build_stage(links.stage, links.stages)
    opt = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(args.steps):
        opt.zero_grad()
        loss = run_step(links, stage, step, args.batch_size)
        opt.step()
        if loss is not None and step % 5 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
