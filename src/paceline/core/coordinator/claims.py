"""Things that one worker does for all, such as saving the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.core.effects import Effect, Send
from paceline.messages import Claim, ClaimDone, Claimed, Ok
from paceline.types import NodeId


@dataclass(slots=True)
class _Claim:
    holder: NodeId
    done: bool = False
    waiting: dict[NodeId, int] = field(default_factory=dict)


class ClaimBook:
    """Who does what. The first to ask does it; when it is lost, the next in line."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    @property
    def finished(self) -> tuple[str, ...]:
        """What is done."""
        return tuple(key for key, claim in self._claims.items() if claim.done)

    def restart(self, finished: Iterable[str]) -> None:
        """Nobody does anything; `finished` is done."""
        self._claims = {key: _Claim("", done=True) for key in finished}

    def claim(self, sender: NodeId, message: Claim) -> list[Effect]:
        """Ask to be the one; answered when that is decided or the thing is done."""
        claim = self._claims.get(message.key)
        if claim is None:
            self._claims[message.key] = _Claim(sender)
            return [Send(sender, Claimed(message.req, True))]
        if claim.done or claim.holder == sender:
            return [Send(sender, Claimed(message.req, not claim.done))]
        claim.waiting[sender] = message.req
        return []

    def done(self, sender: NodeId, message: ClaimDone) -> list[Effect]:
        """The holder has done it: nobody else needs to."""
        claim = self._claims.get(message.key)
        effects: list[Effect] = [Send(sender, Ok(message.req))]
        if claim is None:  # claimed under an earlier coordinator
            claim = self._claims[message.key] = _Claim(sender)
        if not claim.done:
            claim.done = True
            effects += [Send(node, Claimed(req, False)) for node, req in claim.waiting.items()]
            claim.waiting.clear()
        return effects

    def release(self, node: NodeId) -> list[Effect]:
        """A worker that is gone cannot finish what it claimed: the next one in line does."""
        effects: list[Effect] = []
        for key, claim in list(self._claims.items()):
            claim.waiting.pop(node, None)
            if claim.holder == node and not claim.done:
                if claim.waiting:
                    heir = next(iter(claim.waiting))
                    effects.append(Send(heir, Claimed(claim.waiting.pop(heir), True)))
                    claim.holder = heir
                else:
                    del self._claims[key]
        return effects
