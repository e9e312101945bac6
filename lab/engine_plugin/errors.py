"""An API that fails while it calls itself healthy, for `python -m lab fault errors`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]

WANTED = Path("/tmp/dgx-spark-lab-errors")  # noqa: S108 - of the container
BODY = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
"""As vLLM's own (ErrorResponse of its OpenAI protocol)."""


class Errors:
    """ASGI middleware: completions are answered with 500 while the file is there; a new process forgets it."""

    def __init__(self, app: App) -> None:
        WANTED.unlink(missing_ok=True)
        self.app = app

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].endswith("/completions") or not WANTED.exists():
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(BODY).encode()})
