import hashlib
import importlib.util
import os
import time

import torch.distributed as dist


TEMPLATE = '''
import torch


def fused_loss(logits, labels):
    shift = logits - logits.max(-1, keepdim=True).values
    logp = shift - shift.exp().sum(-1, keepdim=True).log()
    return -logp.gather(-1, labels[..., None]).mean() * {scale}
'''


def _write(path, source):
    tmp = f"{path}.{os.getpid()}"
    with open(tmp, "w") as f:
        f.write(source)
    os.replace(tmp, path)


def _import(path):
    spec = importlib.util.spec_from_file_location("generated_" + os.path.basename(path)[:-3], path)
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod


def create_new_function(folder, scale):
    source = TEMPLATE.format(scale=scale)
    path = os.path.join(folder, hashlib.md5(source.encode()).hexdigest() + ".py")
    missing = [not os.path.isfile(path)]
    dist.broadcast_object_list(missing, src=0)
    if missing[0]:
        if dist.get_rank() == 0:
            _write(path, source)
        dist.barrier()
    return _import(path).fused_loss
