"""Character LM over a pipeline of ranks, one stage each."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

from stages import Topology, WordTie, build, report

VOCAB = 64


def batches(steps, batch, length, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCAB, (VOCAB, 3), generator=g)
    for _ in range(steps):
        ids = torch.empty(batch, length + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, VOCAB, (batch,), generator=g)
        for t in range(length):
            pick = torch.randint(0, 3, (batch,), generator=g)
            ids[:, t + 1] = table[ids[:, t], pick]
        yield ids


def step(stage, topo, ids, shape):
    """One forward and backward through the pipeline. The last stage returns the loss."""
    if topo.first:
        out = stage(ids[:, :-1])
    else:
        inp = torch.empty(shape)
        dist.recv(inp, topo.up)
        inp.requires_grad_()
        out = stage(inp)
    if topo.last:
        loss = F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    else:
        dist.send(out.detach(), topo.down)
        grad = torch.empty_like(out)
        dist.recv(grad, topo.down)
        out.backward(grad)
        loss = None
    if not topo.first:
        dist.send(inp.grad, topo.up)
    return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--tie-from", type=int, default=15, help="words are trained apart before")
    p.add_argument("--report-every", type=int, default=25)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--layers", type=int, default=1)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--length", type=int, default=24)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    topo = Topology(dist.get_rank(), dist.get_world_size())
    log = logging.getLogger(f"stage{topo.rank}")
    torch.manual_seed(topo.rank)
    stage = build(topo, VOCAB, a.dim, a.layers)
    tie = WordTie(stage, topo)
    opt = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    shape = (a.batch, a.length, a.dim)

    for i, ids in enumerate(batches(a.steps, a.batch, a.length, seed=5)):
        if i == a.tie_from:
            tie.start(opt)
        opt.zero_grad(set_to_none=True)
        loss = step(stage, topo, ids, shape)
        tie.reduce()
        opt.step()
        if (i + 1) % a.report_every == 0:
            norms = report(topo, stage, i + 1)
            if topo.last:
                log.info("gradient norms %s", norms)
        if loss is not None and i % 5 == 0:
            log.info("step %d loss %.3f", i, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
