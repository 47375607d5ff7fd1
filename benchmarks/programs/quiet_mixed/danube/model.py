import torch.nn as nn


def build_model(cfg):
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(96, cfg.num_classes),
    )
