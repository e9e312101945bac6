from pathlib import Path

import pytest

from tests.toolchain.checkout import Checkout
from toolchain.official import find_official


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path)


def fake_pulumi(version: str) -> str:
    return f"#!/bin/sh\n[ $1 = version ] && echo {version}\n"


def test_an_official_pulumi_is_used_and_nothing_is_built(checkout: Checkout) -> None:
    checkout.put_on_path("pulumi", fake_pulumi("v3.250.0"))
    checkout.put_on_path("pulumi-language-python", "#!/bin/sh\n")
    code, output = checkout.build()
    assert code == 0
    assert "v3.250.0" in output
    assert "is used" in output
    assert not checkout.home.exists()


def test_it_is_built_all_the_same_when_asked(checkout: Checkout) -> None:
    checkout.put_on_path("pulumi", fake_pulumi("v3.250.0"))
    checkout.put_on_path("pulumi-language-python", "#!/bin/sh\n")
    assert checkout.build("--build")[0] == 0
    assert checkout.cli.exists()
    assert "note:" in checkout.build()[1]  # now both are there


@pytest.mark.parametrize(
    ("version", "objection"),
    [("v3.199.9", "older"), ("v3.250.0", "pulumi-language-python"), ("", "version")],
)
def test_one_that_cannot_be_used_is_named_and_passed_over(checkout: Checkout, version: str, objection: str) -> None:
    checkout.put_on_path("pulumi", fake_pulumi(version))
    code, output = checkout.build()
    assert code == 0
    assert "is not used" in output
    assert objection in output
    assert checkout.cli.exists()


def test_one_that_does_not_run_is_passed_over(checkout: Checkout) -> None:
    checkout.put_on_path("pulumi", "#!/no/such/interpreter\n")
    assert checkout.build()[0] == 0
    assert checkout.cli.exists()


def test_the_language_host_may_stand_beside_the_real_file(tmp_path: Path) -> None:
    real = tmp_path / "opt" / "pulumi"
    link = tmp_path / "bin" / "pulumi"
    for path in (real, link):
        path.parent.mkdir()
    real.write_text(fake_pulumi("v3.250.0"))
    real.chmod(0o755)
    real.with_name("pulumi-language-python").touch()
    link.symlink_to(real)
    found = find_official(str(link.parent), tmp_path / "own")
    assert found is not None
    assert (found.executable, found.objection) == (link, "")


@pytest.mark.parametrize("checkout_of_path", ["one", "other"])
def test_our_own_is_no_official_one_also_of_another_checkout(tmp_path: Path, checkout_of_path: str) -> None:
    own, there = (tmp_path / name / ".build" / "toolchain" / "bin" for name in ("one", checkout_of_path))
    there.mkdir(parents=True)
    for name in ("pulumi", "pulumi-language-python"):
        (there / name).write_text(fake_pulumi("v3.276.0"))
        (there / name).chmod(0o755)
    assert find_official(str(there), own) is None
