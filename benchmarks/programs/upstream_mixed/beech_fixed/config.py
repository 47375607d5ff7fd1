from dataclasses import dataclass, field


@dataclass
class Config:
    steps: int = 60
    batch: int = 16
    width: int = 64
    lr: float = 1e-2
    seed: int = 3
    log_every: int = 10
    commands: dict = field(default_factory=lambda: {17: {"command": "set_lr", "value": 5e-3},
                                                    31: {"command": "stop"}})
