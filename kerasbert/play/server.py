"""The playground's web application: the page, and one endpoint per panel.

It only accepts small requests, from this machine and from its own pages.
"""

import collections
import json
import logging
import os
import socket
import threading

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kerasbert.base.errors import first_line
from kerasbert.play.errors import BusyError, RequestError, refusal
from kerasbert.play.loaded import MOST_WAITING
from kerasbert.play.samples import EXAMPLES

PAGE = os.path.join(os.path.dirname(__file__), "page")
HOST = "127.0.0.1"
MOST_BYTES = 2_000_000
MOST_INDEXES = 8
_HEADERS = {
    # With this policy, pages load nothing from other hosts, and texts cannot inject scripts.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# Seconds to wait before retrying when a model is busy.
_RETRY = 2
_log = logging.getLogger(__name__)


class _Headers:
    """Middleware that adds `_HEADERS` to each response."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def send_more(message):
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), x.encode()) for name, x in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, send_more)


def application(loaded):
    """Build the Starlette application for a `Loaded`."""
    indexes = collections.OrderedDict()  # (model, index) by the name that the page chose.
    progress = collections.OrderedDict()
    lock = threading.Lock()
    # Requests have their own threads, so that busy models do not block the page and its files. The
    # 4 additional threads answer requests beyond the limit with an error.
    threads = anyio.CapacityLimiter(MOST_WAITING * len(loaded.presets) + 4)

    def states(request):
        most = {"bytes": MOST_BYTES}
        return JSONResponse({"models": loaded.states(), "examples": EXAMPLES, "most": most})

    async def panel(request):
        path = request.path_params
        return await _respond(request, lambda ask: _panel(loaded, path, ask), threads)

    async def index(request):
        return await _respond(request, make_index, threads)

    async def search(request):
        return await _respond(request, look_up, threads)

    def done(request):
        return JSONResponse({"done": progress.get(request.path_params["name"], 0)})

    def make_index(ask):
        from kerasbert.play import answers

        name = ask.get("index")
        if not isinstance(name, str) or not 0 < len(name) <= 40:
            raise ValueError("index must be a name of 1 to 40 characters.")
        texts = answers.check_texts(ask, "texts", answers.MOST_TEXTS)

        def note(count):
            progress[name] = count
            while len(progress) > MOST_INDEXES:
                progress.popitem(last=False)

        place = ask.get("model")
        note(0)
        made = loaded.use(place, lambda model: answers.make_index(model, texts, note))
        with lock:
            indexes[name] = place, made
            while len(indexes) > MOST_INDEXES:
                indexes.popitem(last=False)
        return {"texts": len(texts)}

    def look_up(ask):
        from kerasbert.play import answers

        with lock:
            name = ask.get("index")
            if not isinstance(name, str) or name not in indexes:
                raise RequestError("The index does not exist any more; build it again.", "index")
            place, made = indexes[name]
        return loaded.use(place, lambda model: answers.search(model, made, ask))

    return Starlette(
        routes=[
            Route("/", lambda request: FileResponse(os.path.join(PAGE, "index.html"))),
            Route("/api/models", states),
            Route("/api/index", index, methods=["POST"]),
            Route("/api/index/{name}", done),
            Route("/api/search", search, methods=["POST"]),
            Route("/api/{panel}", panel, methods=["POST"]),
            Mount("/", StaticFiles(directory=PAGE)),
        ],
        middleware=[
            Middleware(_Headers),
            # Other host names for this machine are rejected, as protection from DNS rebinding.
            Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST]),
        ],
    )


def _panel(loaded, path, ask):
    from kerasbert.play import answers

    return loaded.use(ask.get("model"), lambda model: answers.answer(model, path["panel"], ask))


async def _respond(request, function, threads):
    """Call a function with a request's JSON in a worker thread and return its result as JSON."""
    origin = request.headers.get("origin")
    if origin not in (None, f"http://{request.headers.get('host')}"):
        return _refused("This request comes from another site.", 403)
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return _refused("The request must be JSON.", 415)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            large = f"The request is too large; the limit is {MOST_BYTES:,} bytes."
            return _refused(RequestError(large, "large", most=MOST_BYTES / 1e6), 413)
    try:
        ask = json.loads(body)
    except (ValueError, RecursionError):
        ask = None
    if not isinstance(ask, dict):
        return _refused("The request must be a JSON object.", 400)
    try:
        found = await anyio.to_thread.run_sync(lambda: function(ask), limiter=threads)
        return JSONResponse(found)
    except BusyError as error:
        return _refused(error, 503, {"Retry-After": str(_RETRY)})
    except (ValueError, TypeError) as error:
        return _refused(error, 400)
    except Exception as error:
        _log.exception("The playground failed")
        return _refused(f"{type(error).__name__}: {first_line(error)}", 500)


def _refused(error, status, headers=None):
    """Return an error as JSON; a `RequestError` has a text on the page."""
    return JSONResponse(refusal(error), status_code=status, headers=headers)


def serve(loaded, port, ready):
    """Serve until Ctrl-C.

    Args:
        loaded: a `Loaded`.
        port: int. 0 takes any free port.
        ready: function of the page's URL, called when the page can be opened.

    Raises:
        ValueError: if the port is in use.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.close()
        raise ValueError(
            f"Port {port} is in use by another program; choose one with --port, or 0 for any."
        ) from None
    config = uvicorn.Config(
        application(loaded), log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    listener.listen()  # From here on, browsers can connect and wait for the server to start.
    ready(f"http://{HOST}:{listener.getsockname()[1]}/")
    threading.Thread(target=loaded.load, daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])
