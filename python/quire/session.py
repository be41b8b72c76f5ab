"""Named conversations: continued, forked, rewound, saved and loaded."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Any

from .answer import Answer, QuireError
from .policy import Kv

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Session"]


class Session:
    """A place in a conversation that the engine remembers, with the blocks that were computed for it.

        talk = engine.session("talk")
        talk.generate("Once upon a time", max_tokens=20)
        other = talk.fork("other")        # shares everything so far
    """

    def __init__(self, engine: Engine, name: str, kv: Kv) -> None:
        self._engine, self.name, self._kv = engine, name, kv

    def generate(self, text: str = "", max_tokens: int | None = None, **fields: Any) -> Answer:
        """Goes on with the session's own text and `text`."""
        so_far = self.tokens()
        added = self._engine.tokenize(text, special=not so_far) if text else []
        answer = self._engine.generate(so_far + added, max_tokens, kv=self._kv, **fields)
        assert isinstance(answer, Answer)
        return answer

    def exists(self) -> bool:
        """Whether anything was read under this name."""
        try:
            self.info()
        except QuireError as error:
            if error.status == 404:
                return False
            raise
        return True

    def info(self) -> dict[str, Any]:
        """Tokens, bytes, turns, policy and parent, as the server shows them."""
        return dict(self._engine.request("GET", self._path()))

    def tokens(self) -> list[int]:
        """All tokens that were read or answered; none if there is no such session yet."""
        if not self.exists():
            return []
        return list(self._engine.request("GET", self._path() + "?tokens=true")["token_ids"])

    def text(self) -> str:
        """The same as text."""
        return self._engine.detokenize(self.tokens())

    def fork(self, name: str) -> Session:
        """Another session that shares everything so far; nothing is copied."""
        self._engine.request("POST", self._path("fork"), {"id": name})
        return self._engine.session(name)

    def truncate(self, tokens: int) -> int:
        """Forgets what comes after so many tokens. Returns how many there are then."""
        return int(self._engine.request("POST", self._path("truncate"), {"at_token": tokens})["tokens"])

    def save(self) -> dict[str, Any]:
        """Writes the session to the engine's folder (kv_dir)."""
        return dict(self._engine.request("POST", self._path("save"), {}))

    def load(self) -> dict[str, Any]:
        """Reads the session that was saved under this name, perhaps by another process."""
        body = {"name": self.name, "id": self.name}
        return dict(self._engine.request("POST", "/v1/kv/sessions/load", body))

    def delete(self) -> None:
        """Forgets the name. Blocks stay cached until they are evicted."""
        self._engine.request("DELETE", self._path())

    def _path(self, verb: str = "") -> str:
        path = "/v1/kv/sessions/" + urllib.parse.quote(self.name, safe="")
        return f"{path}/{verb}" if verb else path
