#!/usr/bin/env bash
# One budget's worth of a GPU benchmark, in the machine's own Python; what is measured is added to what the repository has.
#   bash scratch/bench_gpu.sh paper_attention 520 COMMIT [pytest's arguments]      takes 520 s at most, and the last cell (20 s)
# From the repository root on the device machine. The joined file comes back in $OUT; put it to benchmarks/results/ and call again.
# Peers first: PYTHONPATH=... of tools/peer_bundle.sh. FlexAttention's compilers use 12 cores beforehand (scratch/flex_warm.py).
set -euo pipefail
name=$1 budget=$2 commit=$3
shift 3
: "${OUT:=.benchmarks}"
mkdir -p "$OUT" .benchmarks
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" TORCHINDUCTOR_CACHE_DIR="$PWD/.benchmarks/inductor" TRITON_CACHE_DIR="$PWD/.benchmarks/triton"
card=$(python3 benchmarks/cards.py)
file="$OUT/${name}_$card.json"
[ -e "$file" ] || cp "benchmarks/results/${name}_$card.json" "$file" 2>/dev/null || true
python3 -m pytest "benchmarks/bench_${name}.py" -m gpu --require-gpu --benchmark-only --benchmark-quiet -q -p no:cacheprovider \
    --budget "$budget" --results "$file" --benchmark-json=.benchmarks/last.json --commit "$commit" "$@" | tail -40 || test "${PIPESTATUS[0]}" -eq 5
python3 -m stof_cupy report --results "$OUT" --view overview
python3 -m stof_cupy report --results "$OUT" --view seconds
