# The image of API, runner and every command: the runtime packages by their hashes, an account without rights, no build tools.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
WORKDIR /build
COPY requirements/build.txt requirements/image.txt requirements/
RUN python3 -m venv tools \
 && tools/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements/build.txt \
 && python3 -m venv --without-pip /opt/vitrine \
 && tools/bin/pip --python /opt/vitrine install --no-cache-dir --require-hashes --no-deps -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && tools/bin/pip --python /opt/vitrine install --no-cache-dir --no-deps dist/*.whl

FROM ${BASE}
RUN groupadd --gid 10001 vitrine && useradd --no-log-init --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin vitrine
COPY --from=build /opt/vitrine /opt/vitrine
COPY infra/image/health.py /opt/vitrine/health.py
ENV PATH=/opt/vitrine/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# by number, so that Kubernetes can see that it is not root
USER 10001
WORKDIR /home/vitrine
EXPOSE 8000 9464
STOPSIGNAL SIGTERM
# of the API; a runner has another address, see infra/docker-compose.yml
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "/opt/vitrine/health.py"]
ENTRYPOINT ["vitrine"]
CMD ["--help"]
