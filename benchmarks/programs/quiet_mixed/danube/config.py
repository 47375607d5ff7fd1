from dataclasses import dataclass


@dataclass
class Config:
    num_classes: int = 6
    image_size: int = 16
    train_items: int = 1920
    batch_size: int = 16
    epochs: int = 2
    lr: float = 2e-3
    report_every: int = 20
    seed: int = 17
