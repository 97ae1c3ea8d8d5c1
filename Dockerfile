# A server for an index: docker build -t coil . && docker run -p 8080:8080 -v "$PWD/notes.coil:/index.coil:ro" coil
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python -m venv /coil && /coil/bin/pip install --no-cache-dir -c /source/constraints.txt '/source[serve]'

FROM python:3.13-slim
COPY --from=build /coil /coil
RUN useradd --create-home coil
USER coil
ENV PATH=/coil/bin:$PATH
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ready', timeout=3)"]
# The container is reached from outside itself, so the server must listen on all its addresses.
ENTRYPOINT ["coil", "serve", "--host", "0.0.0.0"]
CMD ["/index.coil"]
