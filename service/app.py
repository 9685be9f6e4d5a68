"""The gateway as an ASGI application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version as package_version

from fastapi import FastAPI

from service import problems, routes_v1, routes_v2
from service.backends.base import Backend
from service.dataplane import DataPlane
from service.entries import read_repository
from service.settings import Settings

DESCRIPTION = """
Why did the model decide this? Predictions and their explanations, at the speed of the prediction.

* **/v1** takes and gives named features.
* **/v2** is the Open Inference Protocol, as Triton and KServe speak it, with the verb `explain` added.

Errors are problem documents (RFC 9457), with the member `error` for clients of the Open Inference Protocol.
"""


def create_app(settings: Settings, backend: Backend) -> FastAPI:
    """The gateway over `backend`. It answers at once and is ready when every entry is loaded and warmed;
    `app.state.loading` is the task that loads them: whoever runs the app looks how that ends.

    Raises:
        RepositoryError: the repository is missing, empty or broken.
    """
    repository = read_repository(settings.repository)
    plane = DataPlane(repository, backend, settings.request_timeout_s)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loading = asyncio.create_task(plane.start())
        try:
            yield
        finally:
            plane.refuse_new_work()
            app.state.loading.cancel()
            await asyncio.wait([app.state.loading])
            await plane.stop()

    app = FastAPI(
        title="Rationale",
        version=package_version("rationale"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.plane = plane
    app.state.settings = settings
    problems.install(app)
    app.include_router(routes_v2.router)
    app.include_router(routes_v1.router)
    return app


def create_backend(settings: Settings) -> Backend:
    """The backend that the settings name. Each imports what it needs and no more."""
    if settings.triton is not None:
        from service.backends.triton import TritonBackend

        return TritonBackend(settings.triton, settings.triton_wait_s)
    from service.backends.embedded import EmbeddedBackend

    return EmbeddedBackend(settings.max_queue_size)
