set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR
site=/tmp/site; [ -e $site/nvmath ] || for v in .gpu/vendor1/*.whl; do [ -e "$v" ] && python3 -m zipfile -e "$v" $site; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
cp scratch/earlier/gemm.json $OUT/gemm.json
bench() { timeout -s INT $(($1 + 15)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget $1 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json "${@:2}" > /tmp/bench.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" /tmp/bench.txt | cut -c1-160 | tail -5; }
at norm; bench 30 -k "layer_norm and not compiled and (512x or 4096x or 32768x)"; python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -A19 "^layer_norm" $OUT/summary.txt | cut -c1-150; exit
at tests; timeout -s INT -k 5 75 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 14 -p xdist tests/ops/test_attention_scores.py tests/ops/test_relative_bias.py tests/ops/test_attention_sm90_gpu.py tests/ops/test_gemm_norm.py tests/ops/test_gemm_choice.py > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | cut -c1-200 | head -20
at program; timeout -s INT -k 5 40 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu tests/runtime/test_program_gpu.py > $OUT/program.txt 2>&1; tail -1 $OUT/program.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/program.txt | cut -c1-200 | head
at compiled; bench ${HEAVY:-40} --heavy -k "compiled and layer_norm and (32768x768x3072 or 512x2048x8192 or 4096x1024x4096)"
python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -A19 "^layer_norm" $OUT/summary.txt | cut -c1-150; grep -E "LayerNorm|fold|layer_norm" $OUT/summary.txt | tail -8 | cut -c1-170
at end
