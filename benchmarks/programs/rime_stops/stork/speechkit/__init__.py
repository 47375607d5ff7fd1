from .cache import FeatureStore
from .model import Tagger

__all__ = ["FeatureStore", "Tagger"]
