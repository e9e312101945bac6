"""What a pull downloads: by the registry's manifest, of the node's platform, and a fault where it cannot fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosts.faults import Fault
from hosts.images import download as image_download
from hosts.images.download import check_download, download
from hosts.images.identity import Image
from hosts.images.stock import Stock
from hosts.ssh import Connection
from tests.samples import inspected
from tests.unit.fake_docker import FakeDocker, says

IMAGE = "registry:5000/vllm:1"
NODE = Connection("spark-1", ())
VERSION = "version {{.Server.Os}}/{{.Server.Arch}}"
INSECURE = "info {{range .RegistryConfig.IndexConfigs}}{{if not .Secure}}{{.Name}} {{end}}{{end}}"


def entry(platform: str, *layers: int, kind: str = "SchemaV2Manifest") -> dict[str, Any]:
    """One image as `docker manifest inspect --verbose` prints it (20.10 and 28)."""
    system, _, architecture = platform.partition("/")
    told = [{"digest": f"sha256:{size:064x}", "size": size} for size in layers]
    return {
        "Ref": IMAGE,
        "Descriptor": {"size": 612, "platform": {"architecture": architecture, "os": system}},
        kind: {"schemaVersion": 2, "config": {"digest": "sha256:" + "c0" * 32, "size": 1000}, "layers": told},
    }


ARM = entry("linux/arm64", 600_000, 300_000)
AMD = entry("linux/amd64", 1, 2)
OF_OCI = entry("linux/arm64", 500_000, kind="OCIManifest")
ATTESTATION = entry("unknown/unknown", 5, kind="OCIManifest")
TWICE = entry("linux/arm64", 600_000, 600_000)


def asked(docker: FakeDocker, answer: dict[str, Any], *, insecure: str = "") -> None:
    docker.answer(VERSION, says("linux/arm64\n"))
    docker.answer(INSECURE, says(f"{insecure}\n"))
    docker.answer(f"manifest {IMAGE}", answer)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        (ARM, 901_000),
        ([AMD, ARM], 901_000),
        ([AMD, OF_OCI, ATTESTATION], 501_000),
        (TWICE, 601_000),
        (AMD, None),
        ([], None),
        ({"Ref": IMAGE}, None),
        ([{**ARM, "SchemaV2Manifest": None}], None),
        ("text", None),
    ],
)
def test_size_is_that_of_the_node_platform(docker: FakeDocker, told: Any, size: int | None) -> None:
    asked(docker, says(json.dumps(told)))
    assert download(NODE, IMAGE) == size


@pytest.mark.parametrize("answer", [says(code=1, stderr="no such manifest"), says("not JSON")])
def test_registry_that_tells_nothing_is_left_to_the_pull(docker: FakeDocker, answer: dict[str, Any]) -> None:
    asked(docker, answer)
    assert download(NODE, IMAGE) is None
    assert check_download(NODE, Stock((), containerd=False, root="/var/lib/docker", free=0), IMAGE) is None


@pytest.mark.parametrize(
    ("image", "insecure", "named"),
    [
        (IMAGE, "", False),
        (IMAGE, "other:5000 registry:5000 ", True),
        ("127.0.0.1:5000/vllm:1", "", True),
        ("localhost/vllm:1", "", True),
        ("vllm:1", "registry:5000", False),
    ],
)
def test_registry_without_tls_is_named_as_such_where_the_daemon_allows_it(
    docker: FakeDocker, image: str, insecure: str, named: bool
) -> None:
    asked(docker, says(json.dumps(ARM)), insecure=insecure)
    download(NODE, image)
    assert docker.called("manifest") == [["manifest", "inspect", *["--insecure"] * named, "--verbose", image]]


def test_registry_that_does_not_answer_is_not_waited_for(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_download, "SECONDS", 1)
    asked(docker, says())
    docker.program.write_text(
        docker.program.read_text().replace("#!/bin/bash\n", "#!/bin/bash\n[ $1 != manifest ] || exec sleep 600\n")
    )
    assert download(NODE, IMAGE) is None


@pytest.mark.parametrize(("free", "largest", "fits"), [(947_000, 0, True), (946_000, 0, False), (1, 901_000, True)])
def test_download_that_cannot_fit_is_a_fault(docker: FakeDocker, free: int, largest: int, fits: bool) -> None:
    """901 kB and 5 % for the file system; as much as the node's largest image holds may be there already."""
    asked(docker, says(json.dumps(ARM)))
    images = [Image.of_inspect(inspected() | {"Size": size}) for size in (largest, 10)] if largest else []
    held = Stock(tuple(images), containerd=False, root="/var/lib/docker", free=free)
    if fits:
        assert check_download(NODE, held, IMAGE) == 901_000
    else:
        with pytest.raises(Fault, match=r"no room for image registry:5000/vllm:1, a download of 0\.9 MB") as caught:
            check_download(NODE, held, IMAGE)
        assert caught.value.node == "spark-1"
        assert "0.9 MB needed in /var/lib/docker" in caught.value.cause
