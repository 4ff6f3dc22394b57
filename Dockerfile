# syntax=docker/dockerfile:1
# An image that measures: docker run IMAGE SETTINGS. For an NVIDIA GPU, build with the two arguments of README.md.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG DEBIAN_FRONTEND=noninteractive
# Versions are those of the base's release, which BASE fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/specbench \
    && /opt/specbench/bin/pip install --no-cache-dir --upgrade pip==25.3
# torch comes first, in a layer of its own: it is the largest, and changes least. The CPU build is 200 MB.
ARG TORCH=https://download.pytorch.org/whl/cpu
RUN /opt/specbench/bin/pip install --no-cache-dir --index-url "${TORCH}" "torch>=2.6,<2.14"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY specbench specbench
COPY methods methods
COPY conf conf
COPY results/published results/published
COPY results/profiles/published results/profiles/published
ARG EXTRAS=math
RUN /opt/specbench/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM ${BASE}
ARG DEBIAN_FRONTEND=noninteractive
# A compiler and Python's headers: Triton and torch.compile build kernels when they run.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 bench \
    && install --directory --mode=1777 /work /cache
COPY --from=build /opt/specbench /opt/specbench
ENV PATH=/opt/specbench/bin:${PATH} \
    HF_HOME=/cache/huggingface \
    NUMBA_CACHE_DIR=/cache/numba \
    MPLCONFIGDIR=/cache/matplotlib \
    USER=bench \
    PYTHONUNBUFFERED=1
USER 10001
# Runs are written to /work/results, models of the hub to /cache: mount both to keep them.
WORKDIR /work
VOLUME ["/work", "/cache"]
# A command that ends, not a service.
HEALTHCHECK NONE
ENTRYPOINT ["specbench"]
