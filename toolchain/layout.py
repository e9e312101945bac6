"""Where things lie: everything that is built goes below `.build/toolchain` of the checkout."""

from toolchain.versions import COMMAND, DOCKER, ROOT

HOME = ROOT / ".build" / "toolchain"
BIN = HOME / "bin"
"""To be first on PATH."""

PULUMI_HOME = HOME / "home"
"""To be PULUMI_HOME: the engine looks for plugins below it."""

PLUGINS = PULUMI_HOME / "plugins"
DOCKER_PLUGIN = PLUGINS / f"resource-docker-v{DOCKER}" / "pulumi-resource-docker"
COMMAND_PLUGIN = PLUGINS / f"resource-command-v{COMMAND}" / "pulumi-resource-command"
