"""Three unequal pipeline stages, GPipe-style micro-batches over send/recv."""
import torch
import torch.distributed as dist
import torch.nn as nn

D, MICRO, BATCH, STEPS = 48, 4, 32, 80


def stage_for(rank):
    torch.manual_seed(rank)
    if rank == 0:
        return nn.Sequential(nn.Embedding(100, D), nn.Linear(D, D), nn.GELU())
    if rank == 1:
        return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(D, 256), nn.GELU(), nn.Linear(256, D))])
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 5))


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    net = stage_for(rank)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(8)
    mb = BATCH // MICRO
    for step in range(STEPS):
        ids = torch.randint(0, 100, (BATCH, 6), generator=g)
        label = ids[:, 0] % 5
        opt.zero_grad()
        saved, losses = [], []
        for m in range(MICRO):
            sl = slice(m * mb, (m + 1) * mb)
            if rank == 0:
                inp, out = None, net(ids[sl])
            else:
                inp = torch.empty(mb, 6, D)
                dist.recv(inp, src=rank - 1)
                inp.requires_grad_()
                out = net(inp)
            if rank == last:
                out = nn.functional.cross_entropy(out[:, 0], label[sl]) / MICRO
                losses.append(out.item())
            else:
                dist.send(out.detach().contiguous(), dst=rank + 1)
            saved.append((inp, out))
        for inp, out in reversed(saved):
            if rank == last:
                out.backward()
            else:
                gr = torch.empty_like(out)
                dist.recv(gr, src=rank + 1)
                out.backward(gr)
            if rank > 0:
                dist.send(inp.grad.contiguous(), dst=rank - 1)
        opt.step()
        if rank == last and step % 10 == 0:
            print(f"step {step} loss {sum(losses):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
