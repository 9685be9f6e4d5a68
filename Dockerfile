# The gateway, with the compiler in it.
#
#     docker build -t rationale .                      models run on the CPU, or in a Triton beside it
#     docker build -t rationale:gpu --target gpu .     models run in this container, on its GPU (x86-64)
#     docker run -p 8080:8080 -v ./model_repository:/models:ro rationale

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/rationale
ENV PATH=/opt/rationale/bin:$PATH
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY rationale rationale
COPY compiler compiler
COPY service service
COPY examples/credit examples/credit
RUN pip install .

# onnxruntime and onnxruntime-gpu fill the same folder: the first must be gone before the second comes.
# The bounds are those of the extra `gpu` in pyproject.toml; CUDA and cuDNN come as wheels.
FROM build AS build-gpu
ARG ONNXRUNTIME_GPU="onnxruntime-gpu[cuda,cudnn]>=1.20,<2"
# hadolint ignore=DL3013
RUN pip uninstall --yes onnxruntime && pip install "$ONNXRUNTIME_GPU"

FROM python:${PYTHON}-slim AS runtime
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin rationale
# Pages of 2 MB where memory is large: an explanation of ResNet50 takes 4 to 9% less (docs/performance.md).
ENV PATH=/opt/rationale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1
WORKDIR /models
USER 10001
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=2); c.request('GET', '/v2/health/live'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["rationale"]
CMD ["serve", "--host", "0.0.0.0", "--repository", "/models"]

FROM runtime AS gpu
COPY --from=build-gpu /opt/rationale /opt/rationale

FROM runtime AS cpu
COPY --from=build /opt/rationale /opt/rationale
