# The workbench and its notebooks in a container, without a GPU:
#
#     docker build -t workbench . && docker run --rm -it -p 127.0.0.1:8888:8888 workbench
#
# JupyterLab prints an address with a token. `docker run --rm -it workbench workbench audit FILE` is the command line.
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git && rm -rf /var/lib/apt/lists/*
WORKDIR /workbench
COPY . .
RUN make install
ENV PATH=/workbench/.venv/bin:$PATH
EXPOSE 8888
CMD ["make", "lab", "LAB_ARGS=--no-browser --ip=0.0.0.0 --port=8888"]
