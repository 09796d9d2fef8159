#!/bin/sh
# Generate the committed protobuf modules from the .proto files. Usage: scripts/generate_protobuf.sh [OUTPUT_DIR]
# The descriptor is named raftmq/proto/queue.proto: a bare "queue.proto" collides with other packages in one process.
set -eu
cd "$(dirname "$0")/.."
out=${1:-}
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m grpc_tools.protoc -Iraftmq/proto=. \
    --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" raftmq/proto/queue.proto
"$python" -m grpc_tools.protoc -Iraftmq/proto=. --python_out="$work" --pyi_out="$work" raftmq/proto/peer.proto
cp "$work"/raftmq/proto/*_pb2*.py* "${out:-api/proto}/"
