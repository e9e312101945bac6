"""What all dynamic providers share: explicit diffs, nothing secret in the pickled provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pulumi.dynamic import DiffResult, ResourceProvider

from providers import plugin

plugin.mend()


class Provider(ResourceProvider):
    """Base of the dynamic providers.

    Instances hold no data: Pulumi pickles them into the state by reference to this installed package, so a change of
    code is no diff, and what `refresh` and `destroy` run is the current code.
    """

    serialize_as_secret_always = False

    compared: ClassVar[tuple[str, ...]] = ()
    """Inputs whose change calls update()."""
    identity: ClassVar[tuple[str, ...]] = ()
    """Inputs whose change replaces the resource."""

    def diff(self, _id: str, _olds: Mapping[str, Any], _news: Mapping[str, Any]) -> DiffResult:
        """Compare the inputs that matter; the others (timeouts, paths of the operator) are taken along silently."""
        replaces = [key for key in self.identity if _olds.get(key) != _news.get(key)]
        changes = bool(replaces) or any(_olds.get(key) != _news.get(key) for key in self.compared)
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)
