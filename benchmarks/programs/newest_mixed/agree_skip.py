"""Half-precision style loss scaling: on a bad step everybody rewinds and replays the batch."""
import copy
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(40 + rank)
    w = torch.linspace(-1, 1, 16)
    scale, good, step, skipped, replays = 2.0 ** 16, 0, 0, 0, 0
    shot = (0, copy.deepcopy(net.module.state_dict()), copy.deepcopy(opt.state_dict()), g.get_state())
    fault = {37, 90}
    while step < 140:
        if step % 10 == 0:
            shot = (step, copy.deepcopy(net.module.state_dict()), copy.deepcopy(opt.state_dict()), g.get_state())
        x = torch.randn(32, 16, generator=g)
        y = torch.tanh(x @ w).unsqueeze(1)
        loss = nn.functional.mse_loss(net(x), y)
        scaled = (loss * scale).half().float()
        if rank == 1 and step in fault:
            scaled = scaled * float("inf")
            fault.discard(step)
        opt.zero_grad()
        scaled.backward()
        bad = torch.zeros(1)
        for p in net.parameters():
            p.grad.div_(scale)
            bad += (~torch.isfinite(p.grad)).any().float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            scale, good = scale / 2, 0
            if step > 20:
                step = shot[0]
                net.module.load_state_dict(shot[1])
                opt.load_state_dict(shot[2])
                g.set_state(shot[3])
                replays += 1
            else:
                skipped += 1
                step += 1
            continue
        opt.step()
        good += 1
        if good % 100 == 0:
            scale *= 2
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scale:g} skipped {skipped} replays {replays}", flush=True)
        step += 1
    for p in net.parameters():
        ref = p.detach().clone()
        dist.broadcast(ref, 0)
        assert torch.equal(ref, p)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
