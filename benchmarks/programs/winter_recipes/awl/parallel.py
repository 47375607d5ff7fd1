import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class HybridParallel:
    """Dense part through DDP; lookup tables are kept out of its buckets and reduced as
    sparse tensors, so that only the rows touched in a step travel."""

    def __init__(self, model, cfg):
        self.tables = [t.weight for t in model.embedding.values()]
        skip = [n for n, _ in model.named_parameters() if n.startswith(tuple(cfg["ddp_exclude"]))]
        DDP._set_params_and_buffers_to_ignore_for_model(model, skip)
        for w in self.tables:
            dist.broadcast(w.data, src=0)
        self.module = model
        self.ddp = DDP(model, bucket_cap_mb=cfg["bucket_cap_mb"])

    def __call__(self, *inputs):
        return self.ddp(*inputs)

    def reduce_tables(self):
        world = dist.get_world_size()
        for w in self.tables:
            grad = w.grad.coalesce()
            dist.all_reduce(grad)
            w.grad = grad / world

    def table_parameters(self):
        return self.tables

    def dense_parameters(self):
        ids = {id(w) for w in self.tables}
        return [p for p in self.module.parameters() if id(p) not in ids]
