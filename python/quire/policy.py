"""What a request asks of the cache: the `kv` object of the server, as dataclasses.

    Kv(format="int8", budget=Budget("snapkv", ratio=0.25), session="chat-1")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

__all__ = ["Budget", "Format", "Kv", "Retention", "Select", "Window"]


@dataclass(frozen=True)
class Format:
    """How keys and values are stored; names as `quire kv formats` lists them."""

    k: str | None = None
    v: str | None = None
    group: int | None = None
    recent_exact: int | None = None
    sinks: int | None = None
    skip_layers: Sequence[int] | None = None


@dataclass(frozen=True)
class Window:
    """Only the last `size` tokens are seen, and the first `sink` ones."""

    size: int
    sink: int | None = None


@dataclass(frozen=True)
class Budget:
    """Which tokens of a sequence stay: a method of `quire kv methods` and an amount."""

    policy: str = "snapkv"
    tokens: int | None = None
    ratio: float | None = None
    sink: int | None = None
    recent: int | None = None
    per_head: bool | None = None
    merge: str | None = None
    every: int | None = None
    cut: int | None = None


@dataclass(frozen=True)
class Select:
    """Which part of the cache is read; nothing is dropped."""

    policy: str = "quest"
    tokens: int | None = None
    ratio: float | None = None
    threshold: float | None = None
    columns: int | None = None
    diagonals: int | None = None


@dataclass(frozen=True)
class Retention:
    """How long blocks are kept: seconds or "30m"; a pin is not evicted before that."""

    ttl: float | str | None = None
    pin: bool | None = None
    scope: str | None = None
    ranges: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Kv:
    """The cache's part of a request. A field that is None says nothing."""

    format: str | Format | None = None
    window: Window | None = None
    budget: Budget | None = None
    select: Select | Literal[False] | None = None
    allow_lossy: bool | None = None
    reuse: str | None = None
    recompute: float | None = None
    write: str | None = None
    convert: bool | None = None
    salt: str | None = None
    tenant: str | None = None
    priority: int | None = None
    retention: Retention | None = None
    tiers: Sequence[str] | None = None
    resident: int | str | None = None
    session: str | None = None
    session_mode: Literal["exclusive", "fork"] | None = None
    report: Sequence[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as the server reads it. A dataclass that makes answers lossy allows that."""
        said: dict[str, Any] = _to_json(self)
        if self.allow_lossy is None and (self.window or self.budget or self.select):
            said["allow_lossy"] = True
        return said


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        said = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: _to_json(part) for name, part in said.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [_to_json(part) for part in value]
    return value
