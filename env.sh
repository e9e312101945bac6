# Source it (. ./env.sh): plain pulumi commands then work in this checkout.
root=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)
if [ -x "$root/.build/toolchain/bin/pulumi" ]; then
  # Pulumi built from package registries; nothing is to be asked of Pulumi's own servers.
  export PATH="$root/.build/toolchain/bin:$PATH"
  export PULUMI_HOME="$root/.build/toolchain/home"
  export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true PULUMI_DISABLE_REGISTRY_RESOLVE=true
fi
export PATH="$root/.venv/bin:$PATH"
export PULUMI_SKIP_UPDATE_CHECK=true PULUMI_SUPPRESS_NEO_LINK=true
# The program asks all nodes before the refresh does: a dead host is one clear line, not a provider's timeout.
export PULUMI_RUN_PROGRAM=true
if [ -z "${PULUMI_BACKEND_URL:-}" ]; then
  mkdir -p "$root/.state"
  export PULUMI_BACKEND_URL="file://$root/.state"
fi
if [ -z "${PULUMI_CONFIG_PASSPHRASE+set}${PULUMI_CONFIG_PASSPHRASE_FILE:-}" ]; then
  # Good enough for the lab, which has no secret. Set your own before you create a stack with an API key.
  export PULUMI_CONFIG_PASSPHRASE=dgx-spark-cluster
fi
unset root
