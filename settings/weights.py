"""How the model gets onto the nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from settings.fields import Endpoint, Line, Model, NodePath


class Weights(Model):
    """How the model gets onto the nodes: what one of them has is copied to the others over the fabric."""

    revision: Line = "main"
    """Branch, tag or commit of a model of the hub. A branch is looked up once, when the model is downloaded.
    The default is that of the hub and its client."""
    download_to: NodePath = "~/.cache/huggingface/hub"
    """Cache directory on the nodes for a model given by its hub name; the hub client's own default."""
    endpoint: Endpoint | None = None
    """Address of the hub (HF_ENDPOINT), for a mirror; the hub client's own when unset."""
    streams: Annotated[int, Field(ge=1, le=32)] = 4
    """Files that are copied at once, each over a connection of its own. One connection is bound by one core's copying,
    a few of them by the disks."""
    verify: Literal["size", "checksum"] = "size"
    """What a file is compared by. `checksum` reads every file once on both ends (when it is set, and after each copy);
    sizes cost nothing and are looked at in every run. In a hub's cache a blob's name is its checksum; of a directory
    the first node that has the model, the head before others, is taken to be right."""
    keep: bool = True
    """Whether `pulumi destroy` leaves what was copied or downloaded, as it takes hours to come again. What was there
    before always stays, and what it was mended with, too."""
