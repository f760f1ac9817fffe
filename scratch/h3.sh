set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT /tmp/kept
site=/tmp/site; [ -e $site/nvmath ] || for v in .gpu/vendor1/*.whl; do [ -e "$v" ] && python3 -m zipfile -e "$v" $site; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
python3 -c "from stof_cupy.ops import gemm_vendor; print(\"vendor\", gemm_vendor.version())"
cp scratch/earlier/gemm.json $OUT/gemm.json
bench() { timeout -s INT $(($1 + 15)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget $1 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json "${@:2}" > /tmp/bench.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" /tmp/bench.txt | cut -c1-160 | tail -5; }
at norm; bench 60 -k "layer_norm and not compiled and (512x or 4096x or 32768x)"
at compiled; bench 110 --heavy -k "compiled and layer_norm and (512x or 4096x or 32768x)"
at fold; bench 45 -k "fold and not compiled and (512x or 4096x or 32768x)"
python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -A19 "^layer_norm" $OUT/summary.txt | cut -c1-150; grep -E "LayerNorm|fold|layer_norm" $OUT/summary.txt | tail -8 | cut -c1-170
at end
