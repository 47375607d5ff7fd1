import json
import os
from datetime import timedelta

import torch.distributed as dist


def load_config(path):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), path)) as f:
        return json.load(f)


def start(cfg):
    dist.init_process_group(cfg["backend"], timeout=timedelta(minutes=cfg["timeout_min"]))
    return dist.get_rank(), dist.get_world_size()


def stop():
    dist.barrier()
    dist.destroy_process_group()
