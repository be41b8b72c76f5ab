"""Quire: runs and serves language models around a KV cache that is shared, compressed, kept and measured.

    import quire
    engine = quire.Engine()                                  # a small model, fetched on first use
    print(engine.generate("The capital of France is", max_tokens=8))
"""

from .answer import Answer, Piece, QuireError
from .board import leaderboard
from .engine import Engine, Server
from .policy import Budget, Format, Kv, Retention, Select, Window
from .session import Session

__all__ = ["Answer", "Budget", "Engine", "Format", "Kv", "Piece", "QuireError", "Retention", "Select", "Server",
           "Session", "Window", "leaderboard"]
