"""Serve the folder of an ONNX export over HTTP: MODEL=spam uvicorn app:app --port 8000

POST /predict {"texts": ["A text.", ...]} returns {"answers": [...]}. All texts that wait while a
batch runs are the next batch.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
from typing import Annotated

from fastapi import FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

MODEL = os.environ.get("MODEL", "model")
MAX_BATCH = int(os.environ.get("MAX_BATCH", 32))
MAX_WAITING = 256
MAX_CHARACTERS = 10_000


class Request(BaseModel):
    texts: list[Annotated[str, Field(max_length=MAX_CHARACTERS)]] = Field(
        min_length=1, max_length=MAX_WAITING
    )


def load(folder):
    """Return the function `answer` of an export, which takes a list of texts."""
    path = os.path.join(folder, "answer.py")
    spec = importlib.util.spec_from_file_location("answer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.answer


async def run_batches(answer, waiting):
    """Answer the texts of a queue of `(text, future)`, batch by batch, forever."""
    while True:
        batch = [await waiting.get()]
        while len(batch) < MAX_BATCH and not waiting.empty():
            batch.append(waiting.get_nowait())
        try:
            # Other requests arrive in the meantime.
            answers = await asyncio.to_thread(answer, [text for text, _ in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for (_, future), found in zip(batch, answers, strict=True):
            if not future.done():  # A future is done if its request has been canceled.
                future.set_result(found)


@contextlib.asynccontextmanager
async def lifespan(app):
    answer = load(MODEL)
    answer(["The first run is slower than others."])
    app.state.waiting = asyncio.Queue()
    app.state.batches = asyncio.create_task(run_batches(answer, app.state.waiting))
    yield
    app.state.batches.cancel()


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RequestValidationError)
async def refuse(_, error):
    """Answer 422 without the texts: FastAPI's own answer fails on those that are not Unicode."""
    reasons = [{"loc": one["loc"], "msg": one["msg"]} for one in error.errors()]
    return JSONResponse({"detail": reasons}, 422)


@app.post("/predict")
async def predict(request: Request):
    waiting = app.state.waiting
    if waiting.qsize() + len(request.texts) > MAX_WAITING:
        raise HTTPException(503, "The server is busy.", {"Retry-After": "1"})
    futures = [asyncio.get_running_loop().create_future() for _ in request.texts]
    for item in zip(request.texts, futures):
        waiting.put_nowait(item)
    answers = await asyncio.gather(*futures)
    for found in answers:
        if isinstance(found, Exception):
            raise HTTPException(500, f"{type(found).__name__}: {found}")
    # Embeddings are arrays.
    body = json.dumps({"answers": answers}, default=lambda x: x.tolist())
    return Response(body, media_type="application/json")


@app.get("/health")
async def health():
    if app.state.batches.done():
        raise HTTPException(503, "No batches run any more.")
    return {"status": "ok", "waiting": app.state.waiting.qsize()}
