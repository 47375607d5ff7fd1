import torch.nn as nn


def make_stage(index, count, width, inputs, classes):
    if index == 0:
        return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))
    if index == count - 1:
        return nn.Sequential(nn.SiLU(), nn.LayerNorm(width), nn.Linear(width, classes))
    return nn.Sequential(nn.SiLU(), nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
