from dataclasses import dataclass


@dataclass
class Settings:
    users: int = 500
    items: int = 300
    dim: int = 16
    interactions: int = 3000
    batch: int = 64
    epochs: int = 2
    lr_table: float = 0.01
    lr_dense: float = 0.003
    seed: int = 8
