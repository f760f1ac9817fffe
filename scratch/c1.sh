set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR
site=/tmp/site; for v in .gpu/vendor1/*.whl; do [ -e "$v" ] && python3 -m zipfile -e "$v" $site; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
bash scratch/next.sh minilm
at copies; timeout 20 python3 scratch/copies.py 2>&1 | tail -8
python3 -c "from stof_cupy.ops import gemm_vendor; print(\"vendor\", gemm_vendor.version())"
cp scratch/earlier/gemm.json $OUT/gemm.json
bench() { timeout -s INT $(($1 + 15)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget $1 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json "${@:2}" > /tmp/bench.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" /tmp/bench.txt | cut -c1-160 | tail -5; }
at few; bench 12 -k "copy or (plain and (-1x or -16x))"
at fold; bench 24 -k "fold and not compiled and (512x or 4096x or 8192x or 32768x)"
at pairs; timeout 25 python3 scratch/gemm_pair.py 2>&1 | tail -20 | cut -c1-200
python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -E "^fold" -A36 $OUT/summary.txt | cut -c1-120; tail -24 $OUT/summary.txt | cut -c1-170; at end
