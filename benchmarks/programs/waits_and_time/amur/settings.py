from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Settings:
    iterations: int = 240
    policy_every: int = 6
    stats_every: int = 8
    log_every: int = 24
    states: int = 12
    actions: int = 4
    hidden: int = 48
    horizon: int = 16
    batch: int = 64
    lr: float = 4e-3
    seed: int = 17


def load_settings(argv):
    changes = {}
    for item in argv:
        key, _, value = item.lstrip("-").partition("=")
        kind = Settings.__annotations__[key]
        changes[key] = kind(value)
    return replace(Settings(), **changes)
