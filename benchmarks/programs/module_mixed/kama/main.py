import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from layers import ParallelLM
from worker import PolicyWorker

VOCAB, D, HEADS, DEPTH = 48, 32, 4, 2
STEPS, MICRO, BATCH, SEQ = 16, 2, 8, 24


def batches(dp_rank):
    gen = torch.Generator().manual_seed(100 + dp_rank)
    while True:
        start = torch.randint(0, VOCAB, (BATCH, 1), generator=gen)
        stride = torch.randint(1, 4, (BATCH, 1), generator=gen)
        yield (start + stride * torch.arange(SEQ)) % VOCAB


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1234)
    model = ParallelLM(VOCAB, D, HEADS, DEPTH, mesh.get_group("tp"))
    worker = PolicyWorker(model, 3e-3, mesh.get_group("dp"), mesh.get_group("tp"))
    stream = batches(mesh.get_local_rank("dp"))

    first = worker.train(next(stream))
    for step in range(STEPS):
        worker.begin_train_step()
        loss = sum(worker.train_microbatch(next(stream)) for _ in range(MICRO)) / MICRO
        worker.finish_train_step()
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step} loss {loss:.4f} (first {first:.4f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
