import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build_mesh(shard_size):
    replicas = dist.get_world_size() // shard_size
    return init_device_mesh("cpu", (replicas, shard_size), mesh_dim_names=("dp_replicate", "dp_shard"))


def parallelize(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
