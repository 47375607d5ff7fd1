"""Every operation that a process group has, once, on three ranks. Run by test_collectives.py under the probe."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def world():
    rank, t = dist.get_rank(), torch.ones(4)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    dist.broadcast(t, src=2)
    dist.reduce(t, dst=1, op=dist.ReduceOp.PRODUCT)
    dist.barrier()
    dist.all_gather([torch.zeros(4) for _ in range(3)], t)
    dist.all_gather_into_tensor(torch.zeros(12), t)
    dist.reduce_scatter_tensor(torch.zeros(4), torch.ones(12), op=dist.ReduceOp.SUM)
    dist.gather(t, [torch.zeros(4) for _ in range(3)] if rank == 0 else None, dst=0)
    dist.scatter(torch.zeros(4), [torch.zeros(4)] * 3 if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.zeros(3), torch.ones(3))
    dist.monitored_barrier()


def pairs():
    t = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(t, 1, tag=7)
    elif dist.get_rank() == 1:
        dist.recv(t, 0, tag=7)
    ring = [
        dist.P2POp(dist.isend, t, (dist.get_rank() + 1) % 3),
        dist.P2POp(dist.irecv, torch.zeros(4), (dist.get_rank() - 1) % 3),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()


def objects():
    dist.all_gather_object([None] * 3, {"rank": dist.get_rank()})
    dist.broadcast_object_list([dist.get_rank()], src=1)


def half():
    group = dist.new_group([1, 2])
    if dist.get_rank() in (1, 2):
        dist.broadcast(torch.ones(2, dtype=torch.int64), src=2, group=group)
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()


def ddp():
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(4)).sum().backward()


dist.init_process_group("gloo")
world()
pairs()
objects()
half()
ddp()
print("all done", flush=True)
dist.destroy_process_group()
