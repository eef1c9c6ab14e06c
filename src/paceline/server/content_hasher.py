"""Hashes the content of blocks while training goes on."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.blocks.block_state import FrozenContents, content_hash
from paceline.server.background import BackgroundThread, yield_to_training


class _HasherThread(BackgroundThread):
    """Hashes one version, and releases the memory of each store as soon as it is hashed."""

    def __init__(self, frozen: Sequence[FrozenContents]) -> None:
        super().__init__("paceline-hash")
        self._frozen = list(frozen)
        self.version = frozen[0].version
        self.contents: dict[int, bytes] = {}

    def run(self) -> None:
        """Hash all blocks."""
        yield_to_training()
        for contents in self._frozen:
            try:
                for index, block in contents.blocks.items():
                    if not self._given_up:
                        self.contents[index] = content_hash(contents.specs[index], block)
            finally:
                contents.release()


class ContentHasher:
    """Hashes at most one version at a time, in another thread. `poll` returns the hashes; only `close` blocks."""

    def __init__(self) -> None:
        self._thread: _HasherThread | None = None

    def begin(self, frozen: Sequence[FrozenContents]) -> bool:
        """Hash all blocks of `frozen`, which have one version; False if another version is still being hashed."""
        if self._thread is not None:
            for contents in frozen:
                contents.release()
            return False
        self._thread = _HasherThread(frozen)
        self._thread.start()
        return True

    def poll(self) -> tuple[int, dict[int, bytes]] | None:
        """A version that is hashed and the hash of each block, returned once; None until then."""
        thread = self._thread
        if thread is None or thread.is_alive():
            return None
        self._thread = None
        return None if thread.given_up else (thread.version, thread.contents)

    def close(self, timeout_s: float = 2.0) -> None:
        """Give up the version that is being hashed, and wait at most `timeout_s` for the thread to end."""
        if self._thread is not None:
            self._thread.give_up()
            self._thread.join(timeout_s)
