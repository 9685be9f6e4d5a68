"""`/console`: files that a browser runs as they are.

They hold no data: the page asks the API, by its caller's key.
"""

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from rationale_service.security.keys import NOBODY_NEEDS, needs

PATH = "/console"
FILES = Path(__file__).parent / "files"

# Nothing of the page comes from elsewhere or goes there; no text of a model's can become script or style.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked for again by its ETag: an update shows at once
}


class _ConsoleFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def add_console(app: FastAPI) -> None:
    """Add `/console`. Its links are relative: a proxy may put it under a prefix."""

    @app.get(PATH, include_in_schema=False)
    @needs(NOBODY_NEEDS)
    async def console() -> RedirectResponse:
        return RedirectResponse(f"{PATH[1:]}/")  # relative too, so that the prefix stays

    files = _ConsoleFiles(directory=FILES, packages=[("rationale.pictures.browser", "files")], html=True)
    app.mount(PATH, needs(NOBODY_NEEDS)(files))
