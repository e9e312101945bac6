"""The stack's configuration: one pydantic model per thing a user describes, every default with its reason.

Read from the Pulumi configuration value ``dgx-spark-cluster:cluster``. Unknown keys are refused, models are frozen,
and an invalid value is reported by its YAML path (see :func:`parse`). Secrets are not part of the model: the API key
is the Pulumi secret ``dgx-spark-cluster:apiKey``, the hub's token ``hubToken``, others are in ``secretEnvironment``.
"""

from settings.checks import NEEDED_UNITS, RESERVED_ENVIRONMENT
from settings.cluster import MOST_NODES, Cluster, Deadlines, Node, Ray
from settings.fields import SettingsError
from settings.host import Mount, Overridable, Ulimit
from settings.reading import key_faults, parse, secret_faults, token_faults
from settings.weights import Weights

__all__ = [
    "MOST_NODES",
    "NEEDED_UNITS",
    "RESERVED_ENVIRONMENT",
    "Cluster",
    "Deadlines",
    "Mount",
    "Node",
    "Overridable",
    "Ray",
    "SettingsError",
    "Ulimit",
    "Weights",
    "key_faults",
    "parse",
    "secret_faults",
    "token_faults",
]
