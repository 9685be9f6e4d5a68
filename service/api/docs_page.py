"""`/docs`: the API in a browser, by Swagger UI, whose files come from this server alone.

The page's policy keeps it so: nothing of it is loaded from elsewhere, nor sent there.
"""

import base64
import hashlib
import re

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

_PATH = "/docs"
_FILES = f"{_PATH}/files"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
# Swagger UI sets styles on its elements, and has its pictures in its style sheet.
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def install(app: FastAPI) -> None:
    """Adds the page to an app that has none. Its links are relative: a proxy may put it under a prefix."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=app.title,
        swagger_js_url=f"{_FILES[1:]}/swagger-ui-bundle.js",
        swagger_css_url=f"{_FILES[1:]}/swagger-ui.css",
        swagger_favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},  # by default it shows the document to swagger.io
    ).body
    headers = {"Content-Security-Policy": _POLICY.format(digest=_digest(bytes(page).decode()))}

    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    app.get(_PATH, include_in_schema=False)(docs)
    app.mount(_FILES, StaticFiles(packages=[("fastapi_offline", "static")]))


def _digest(page: str) -> str:
    """Of the page's one script, as a policy names it."""
    (script,) = _SCRIPT.findall(page)
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
