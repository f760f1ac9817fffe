#!/usr/bin/env bash
# Fetches the wheels of nvmath.bindings (Python 3.12) for a GPU machine with no network into DIR; usage: vendor_bundle.sh DIR (ignored by git)
# On the GPU machine: SITE=$(mktemp -d); for w in DIR/*.whl; do python3 -m zipfile -e $w $SITE; done; export PYTHONPATH=$SITE:$PWD
# libcublasLt.so.13 is torch's. Check: python3 -c "from stof_cupy.ops import gemm_vendor; print(gemm_vendor.version())"
set -euo pipefail
dir=${1:?usage: vendor_bundle.sh DIR}; mkdir -p "$dir"
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  -d "$dir" nvmath-python==1.0.0 cuda-bindings cuda-core cuda-pathfinder
ls -l "$dir"
