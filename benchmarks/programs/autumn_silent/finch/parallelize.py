from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def apply_fsdp(model, world_size):
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    last = len(model.layers) - 1
    for i, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=i < last)
    fully_shard(model, mesh=mesh)
    return model


def build_param_groups(model, lr, embed_lr, weight_decay):
    inner, outer = [], []
    for name, param in model.named_parameters():
        (inner if name.startswith("layers.") else outer).append(param)
    return [
        {"params": inner, "lr": lr, "weight_decay": weight_decay},
        {"params": outer, "lr": embed_lr, "weight_decay": 0.0},
    ]
