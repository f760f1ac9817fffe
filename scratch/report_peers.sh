#!/usr/bin/env bash
# Packs the peers of issue 9 for a GPU machine (Python 3.12, CUDA 13.0, torch 2.11) into DIR, FlashInfer with its libraries built here: no compiling there.
#   bash scratch/report_peers.sh DIR [fa3] [fa4] [flashinfer]     TOOLS=/work/shared/tools TORCH_PYTHON=/tmp/venvT/bin/python (any with torch; only to describe the build)
# fa3 and fa4 take 5-10 minutes each (xz -9e on one core), flashinfer 15 (nvcc on one core); WORK=DIR keeps what flashinfer is made of. DIR: ignored by git. 64 MiB travel in a call with the repository's 8: report_gpu.sh says what in which.
set -euo pipefail
dir=$(mkdir -p "${1:?usage: report_peers.sh DIR [set ...]}" && cd "$1" && pwd); shift
python=${TORCH_PYTHON:-/tmp/venvT/bin/python} tools=${TOOLS:-/work/shared/tools}
for s in ${*:-flashinfer fa3 fa4}; do
  if [ "$s" != flashinfer ]; then bash "$tools/peer_bundle.sh" "$dir" "$s"
    if [ "$s" = fa4 ]; then # 60 MiB: 20 beside fa3 and flashinfer in one call, the rest in the next
      head -c 20971520 "$dir/fa4.tar.xz" > "$dir/fa4.tar.xz.0"; tail -c +20971521 "$dir/fa4.tar.xz" > "$dir/fa4.tar.xz.1"; rm "$dir/fa4.tar.xz"
    fi
    continue
  fi
  work=${WORK:-$(mktemp -d)}
  [ -d "$work/site" ] || $python -m pip install -q --no-deps --target "$work/site" flashinfer-python==0.6.13 apache-tvm-ffi==0.1.15.post2
  # what flashinfer imports and the GPU machine has
  [ -d "$work/deps" ] || $python -m pip install -q --no-deps --target "$work/deps" nvidia-ml-py tabulate requests einops click tqdm urllib3 certifi idna charset-normalizer
  [ -d "$work/curand" ] || $python -m pip install -q --no-deps --target "$work/curand" nvidia-curand # headers that cutlass' tools include, for the fa3 kernels
  export CPATH=$(dirname "$(find "$work/curand" -name curand_kernel.h | head -1)")
  mkdir -p "$work/stub"; gcc -shared -x c /dev/null -o "$work/stub/libcuda.so" -Wl,-soname,libcuda.so.1 # the driver's library, which is there and not here
  cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  [ -d "$cuda/lib64" ] || cuda=/usr/local/cuda-13.0
  env PYTHONPATH="$work/site:$work/deps" FLASHINFER_CUDA_ARCH_LIST=9.0a FLASHINFER_WORKSPACE_BASE="$work/ws" MAX_JOBS=${JOBS:-1} LIBRARY_PATH="$work/stub:$cuda/lib64" $python - <<'EOF'
import shutil
import torch
from flashinfer.jit.attention import gen_batch_prefill_module
from flashinfer.jit.quantization import gen_quantization_module

b = torch.bfloat16
kernels = [gen_batch_prefill_module(by, b, b, b, torch.int32, dim, dim, 0, False, False, False) for by in ("fa2", "fa3") for dim in (64, 128)]  # fa3: whole blocks
for spec in (gen_quantization_module(), *kernels):
    spec.build(verbose=False)
    spec.aot_path.parent.mkdir(parents=True, exist_ok=True)  # where flashinfer looks before it compiles
    shutil.copy(spec.jit_library_path, spec.aot_path)
    print("built", spec.name)
EOF
  pack=$(mktemp -d); cp -r "$work/site/." "$pack"; rm -rf "$pack"/tvm_ffi "$pack"/apache_tvm_ffi* # of this Python; that of the GPU machine's travels
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$pack" apache-tvm-ffi==0.1.15.post2
  for w in "$pack"/*.whl; do unzip -qo "$w" -d "$pack"; rm "$w"; done
  find "$pack" -name __pycache__ -prune -exec rm -r {} +
  tar -C "$pack" -cf - . | xz -T1 -6 > "$dir/flashinfer.tar.xz"; rm -rf "$pack"
  ls -l "$dir/flashinfer.tar.xz"
done
