# The broker and the raftmq command. docs/guides/containers.md explains it. Python programs of yours need only `pip install raftmq`.
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY . .
# The versions of requirements.lock, without its hashes, because the project itself has none.
RUN sed -n 's/^\([a-z0-9][^ ;]*==[^ ;]*\).*/\1/p' requirements.lock > /constraints.txt \
    && pip wheel --no-cache-dir --wheel-dir /wheels --constraint /constraints.txt '.[server,otel]' \
    && python -m venv /app \
    && /app/bin/pip install --no-cache-dir --no-index --find-links /wheels 'raftmq[server,otel]'

FROM python:3.13-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin raftmq \
    && install --directory --owner raftmq --group raftmq /var/lib/raftmq
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RAFTMQ_DATA_DIR=/var/lib/raftmq
USER 10001:10001
WORKDIR /var/lib/raftmq
VOLUME ["/var/lib/raftmq"]
EXPOSE 9400 9401 9402 9403
STOPSIGNAL SIGTERM
# Whether the process lives. A broker that waits for its cluster lives, but is not ready: docker-compose.yml asks /readyz.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://' + os.environ.get('RAFTMQ_HTTP_LISTEN', '127.0.0.1:9402') + '/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "raftmq"]
CMD ["broker", "start"]
