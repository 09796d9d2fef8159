"""Record which keys of a table changed, so that a reader looks at the changes since its last look and not at everything.

The record belongs to a process, not to its state: equal logs may leave different records.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

RECENT_CHANGES_MAX: Final = 20_000
"""Keys in a record. A reader that lags behind by more changed keys must look at everything."""

KeyT = TypeVar("KeyT", bound=int)


class RecentChanges(Generic[KeyT]):
    """The keys that changed lately, in the order of their last changes."""

    def __init__(self) -> None:
        self.version = 0
        """Number of changes so far. It may jump, and it never repeats."""
        self._complete_after = 0
        """The record contains every change after this version."""
        self._versions: dict[KeyT, int] = {}
        """The version of the last change of each key. The newest is last."""

    def record(self, key: KeyT) -> None:
        """Record that a key was added, replaced or removed."""
        self.version += 1
        self._versions.pop(key, None)
        self._versions[key] = self.version
        if len(self._versions) > RECENT_CHANGES_MAX:
            oldest = next(iter(self._versions))
            self._complete_after = self._versions.pop(oldest)

    def record_all(self, version_before: int = 0) -> None:
        """Record that any key may have changed. Count on from the version of another record that this one replaces."""
        self.version = 1 + max(self.version, version_before)
        self._complete_after = self.version
        self._versions.clear()

    def after(self, version: int) -> list[KeyT] | None:
        """Return the keys that changed after `version`, ascending, or None if any key may have changed."""
        if version < self._complete_after:
            return None
        found: list[KeyT] = []
        for key in reversed(self._versions):
            if self._versions[key] <= version:
                break
            found.append(key)
        return sorted(found)
