"""What all dynamic providers share: explicit diffs, nothing secret in the pickled provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pulumi.dynamic import DiffResult, ResourceProvider, UpdateResult

from providers import plugin

plugin.mend()


class Provider(ResourceProvider):
    """Base of the dynamic providers.

    Instances hold no data: Pulumi pickles them into the state by reference to this installed package, so a change of
    code is no diff, and what `refresh` and `destroy` run is the current code.
    """

    serialize_as_secret_always = False

    compared: ClassVar[tuple[str, ...]] = ()
    """Inputs whose change is acted upon."""
    remembered: ClassVar[tuple[str, ...]] = ()
    """Inputs that read() or delete() need, the way to the node above all: both are given the state, and without a diff
    that keeps the old ones. Their change alone goes into the state, and nothing else happens."""
    identity: ClassVar[tuple[str, ...]] = ()
    """Inputs whose change replaces the resource."""

    def diff(self, _id: str, _olds: Mapping[str, Any], _news: Mapping[str, Any]) -> DiffResult:
        """Compare the inputs that matter; of the others the state keeps what it has, and nobody reads it there."""
        replaces = _differing(self.identity, _olds, _news)
        changes = bool(replaces or _differing(self.remembered, _olds, _news)) or self.acts(_olds, _news)
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Mapping[str, Any], _news: Mapping[str, Any]) -> UpdateResult:
        """Act upon a change, or just remember it."""
        if self.acts(_olds, _news):
            return UpdateResult(self.renew(_olds, _news))
        return UpdateResult({**_olds, **{key: _news[key] for key in self.remembered}})

    def acts(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        """Whether there is more to a change than to remember it."""
        return bool(_differing(self.compared, olds, news))

    def renew(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the change asks for; the new outputs."""
        raise NotImplementedError


def _differing(keys: Iterable[str], olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[str]:
    return [key for key in keys if olds.get(key) != news.get(key)]
