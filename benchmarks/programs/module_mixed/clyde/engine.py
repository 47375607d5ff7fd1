import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from grad_clip import clip_grad_norm


class ModelEngine:
    """One interface for the strategies; this build has plain data parallelism only."""

    def __init__(self, module, strategy="ddp", max_grad_norm=1.0, lr=0.2):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        self._dp_group = self.mesh.get_group("dp")
        self.strategy = strategy
        self.model = DDP(module, process_group=self._dp_group)
        self.max_grad_norm = max_grad_norm
        self.optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.98)

    def forward(self, *args):
        return self.model(*args)

    def backward(self, loss):
        loss.backward()

    def step(self):
        norm = clip_grad_norm(self.model.parameters(), self.max_grad_norm, group=self._dp_group)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return norm.item()
