"""What a pull downloads, asked before it begins: the registry's manifest, read by the node's own Docker and login."""

from __future__ import annotations

import json
from typing import Any

from hosts.images.stock import Stock, amount, check_room
from hosts.ssh import Connection

MANIFEST = """
docker version --format '{{.Server.Os}}/{{.Server.Arch}}' || exit
registry=${1%%/*} plain=
case $registry in 127.*|localhost|localhost:*) plain=--insecure ;; esac
for name in $(docker info --format '{{range .RegistryConfig.IndexConfigs}}{{if not .Secure}}{{.Name}} {{end}}{{end}}')
do
  if [ "$name" = "$registry" ]; then plain=--insecure; fi
done
exec timeout "$2" docker manifest inspect $plain --verbose "$1"
"""
"""The command is there without further ado since Docker 20.10. It asks the registry itself and does not know the
daemon's settings, so a registry without TLS must be named to it. It takes each platform's manifest, and Docker Hub
counts these as downloads (100 in 6 hours without a login): it is asked when a pull is due, not by every preview."""
SECONDS = 20
"""A registry that the daemon alone reaches, through a mirror or a proxy, would be waited for in vain."""


def download(connection: Connection, reference: str) -> int | None:
    """Bytes that the registry sends for an image: the configuration and the compressed layers of the node's platform.

    None where that is not known: the registry refuses, only the daemon reaches it, or this client does not know the
    manifest's format (20.10 has none of OCI's). What is wrong then is for the pull to say.

    Raises:
        Fault: the node cannot be reached.
    """
    done = connection.run("sh", "-c", MANIFEST, "sh", reference, str(SECONDS))
    if done.returncode:
        return None
    platform, _, told = done.stdout.partition("\n")
    try:
        found = json.loads(told)
        entries = found if isinstance(found, list) else [found]
        return min((_size(entry) for entry in entries if _platform(entry) == platform), default=None)
    except (ValueError, LookupError, TypeError):
        return None


def _platform(entry: dict[str, Any]) -> str:
    platform = entry["Descriptor"]["platform"]
    return f"{platform['os']}/{platform['architecture']}"


def _size(entry: dict[str, Any]) -> int:
    manifest = entry.get("SchemaV2Manifest") or entry["OCIManifest"]
    layers = {layer["digest"]: int(layer["size"]) for layer in manifest["layers"]}  # one that occurs twice comes once
    return int(manifest["config"]["size"]) + sum(layers.values())


def check_download(connection: Connection, held: Stock, reference: str) -> int | None:
    """See that what a pull downloads fits before it begins; its bytes, None where they are not known.

    That is the least it needs, and no factor is assumed for what unpacking adds: a layer is no smaller unpacked. Layers
    that the node has already are those of one image, as Docker finds them by their chain, and the registry does not
    say which: all that the node's largest image holds is taken off.

    Raises:
        Fault: it certainly does not fit, or the node cannot be reached.
    """
    size = download(connection, reference)
    if size is not None:
        least = max(0, size - max((image.size for image in held.images), default=0))
        check_room(connection, held, least, f"image {reference}, a download of {amount(size)} before it is unpacked")
    return size
