"""The errors of loading a model, in one place for those who call `load`."""

from engine.models.errors import InvalidConfig, ModelError, UnsupportedArchitecture, UnsupportedFeature

__all__ = ["InvalidConfig", "ModelError", "UnsupportedArchitecture", "UnsupportedFeature"]
