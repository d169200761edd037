"""Why a model cannot be served. Each message is written for the person who chose the model."""


class ModelError(Exception):
    """The model cannot be found, read or run. The message says what was got and what would work."""


class UnsupportedArchitecture(ModelError):
    """The model's architecture is none that we know; the message lists those that we do."""


class UnsupportedFeature(ModelError):
    """A known architecture, with an option in its config that changes the maths and that we do not have."""


class InvalidConfig(ModelError):
    """The config lacks a field, or holds a value of the wrong kind; the message names the field."""
