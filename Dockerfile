# The gateway with the compiler. Models run on the CPU, or in a separate Triton.
#
#     docker build -t rationale .
#     docker run -p 127.0.0.1:8080:8080 -v ./model_repository:/models:ro -v rationale-state:/var/lib/rationale rationale
#
# The volume keeps the audit trail of decisions, explainers and reference sets over a restart. With it the container
# can be read-only (--read-only --tmpfs /tmp) and run as any user of group 0. Dockerfile.gpu builds an image that runs
# models on a GPU.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/rationale
ENV PATH=/opt/rationale/bin:$PATH
WORKDIR /source
COPY requirements.lock ./
RUN pip install --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY compiler compiler
COPY service service
COPY examples/credit examples/credit
RUN pip install --no-deps --no-build-isolation .

# Texts are lower-cased by the locale C.UTF-8, which every Debian holds; docs/operations/containers.md shows how to add another.
FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin rationale \
    && install --directory --owner 10001 --group 0 --mode 0770 /var/lib/rationale
COPY --from=build /opt/rationale /opt/rationale
# Pages of 2 MB where memory is large: an explanation of ResNet50 takes 4 to 9% less (docs/performance.md).
ENV PATH=/opt/rationale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RATIONALE_STATE=/var/lib/rationale \
    ORT_DISABLE_TELEMETRY=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1
VOLUME /var/lib/rationale
WORKDIR /models
USER 10001
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=2); c.request('GET', '/v2/health/live'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["rationale"]
CMD ["serve", "--host", "0.0.0.0", "--repository", "/models"]
