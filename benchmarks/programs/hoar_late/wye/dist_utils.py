import os
import socket

import torch.distributed as dist


def port_is_free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def find_free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def setup(backend="gloo"):
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.setdefault("MASTER_PORT", "29500"))
    if "TORCHELASTIC_RUN_ID" not in os.environ and rank == 0 and not port_is_free(port):
        os.environ["MASTER_PORT"] = str(find_free_port())
    print(f"rank {rank}/{world} joins {os.environ['MASTER_ADDR']}", flush=True)
    dist.init_process_group(backend, rank=rank, world_size=world)
    return rank, world


def cleanup():
    if dist.is_initialized():
        dist.destroy_process_group()
