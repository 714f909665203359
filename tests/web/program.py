"""The same application in three frameworks, as its users serve it: `uvicorn tests.web.program:app`.

`POST /messages/ID` receives a message; its handler writes one effect, and waits before that where the environment names
a file whose end it is to wait for.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, Settings, execute

FRAMEWORK, KIND = os.environ["WEB_FRAMEWORK"], os.environ["WEB_KIND"]
CONCURRENCY = int(os.environ.get("WEB_CONCURRENCY", "2"))
FOLDER = Path(os.environ["WEB_FOLDER"])

inbox = Inbox(
    os.environ["WEB_STORE"],
    service="web",
    settings=Settings(lease=timedelta(seconds=1), poll=timedelta(milliseconds=50)),
)


def _held() -> bool:
    """Whether the message is to wait, so that the process can be killed in the middle."""
    (FOLDER / "running").touch()
    return (FOLDER / "hold").exists()


if KIND == "def":

    @inbox.on("made")
    def made(message: Message, tx: Any) -> None:
        """Write the effect, then perhaps wait."""
        execute(tx, "INSERT INTO effects VALUES (:id, NULL)", {"id": message.id})
        while _held():
            time.sleep(0.01)

else:

    @inbox.on("made")
    async def amade(message: Message, tx: Any) -> None:
        """As `made`, awaited."""
        mark = "?" if inbox.store.dialect == "sqlite" else "%s"
        await tx.execute(f"INSERT INTO effects VALUES ({mark}, NULL)", [message.id])
        while _held():  # noqa: ASYNC110 - for a file that another process removes
            await asyncio.sleep(0.01)


async def receive(message_id: str) -> dict[str, Any]:
    """What the endpoint does."""
    receipt = await inbox.areceive(source="api", id=message_id, type="made", data={})
    return {"status": receipt.status}


@asynccontextmanager
async def own(app: Any) -> AsyncIterator[dict[str, str]]:
    """A lifespan of the application's own, which is there before the workers and longer."""
    del app
    (FOLDER / "opened").touch()
    yield {"resource": "open"}
    (FOLDER / "closed").touch()


LIFESPAN = inbox.lifespan(concurrency=CONCURRENCY, around=own)

if FRAMEWORK == "fastapi":
    from fastapi import FastAPI, Request

    application = FastAPI(lifespan=LIFESPAN)

    @application.post("/messages/{message_id}")
    async def fastapi_post(message_id: str, request: Request) -> dict[str, Any]:
        """Receive it."""
        assert request.state.resource == "open"
        return await receive(message_id)

    app: Any = application
elif FRAMEWORK == "starlette":
    from starlette.applications import Starlette
    from starlette.requests import Request as StarletteRequest  # noqa: TC002 - the server needs it
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def starlette_post(request: StarletteRequest) -> JSONResponse:
        """Receive it."""
        assert request.state.resource == "open"
        return JSONResponse(await receive(request.path_params["message_id"]))

    app = Starlette(routes=[Route("/messages/{message_id}", starlette_post, methods=["POST"])], lifespan=LIFESPAN)
else:
    from litestar import Litestar, post

    @post("/messages/{message_id:str}")
    async def litestar_post(message_id: str) -> dict[str, Any]:
        """Receive it."""
        return await receive(message_id)

    app = Litestar([litestar_post], lifespan=[LIFESPAN])
