set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR
R=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
PYTHONPATH=$R python3 -c "from stof_cupy.jit import device; print(device.facts().clusters)"
(PYTHONPATH=$R timeout 60 python3 scratch/ct.py > $OUT/ct.txt 2>&1 &)
at tests; PYTHONPATH=$R timeout -s INT -k 5 60 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 12 -p xdist tests/ops/test_gemm_few_rows.py tests/jit tests/ops/test_gemm_choice.py tests/ops/test_gemm_sm90.py -k "not sm90 or swapped" > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | head
at old; PYTHONPATH=$PWD/.gpu/old:$PWD/scratch timeout 40 python3 scratch/ask_ab.py $OUT/old.json > /dev/null 2>$OUT/err.txt || tail -3 $OUT/err.txt
at 4096; PYTHONPATH=$PWD/.gpu/v4096:$PWD/scratch timeout 40 python3 scratch/ask_ab.py $OUT/v4096.json $OUT/old.json
at 8192; PYTHONPATH=$R timeout 40 python3 scratch/ask_ab.py $OUT/v8192.json $OUT/old.json
at norm; PYTHONPATH=$R timeout 30 python3 scratch/add_norm.py 2>&1 | tail -14 | cut -c1-180
at compile; PYTHONPATH=$R timeout 60 python3 scratch/gemm_compile.py grid 2>&1 | tail -2
bench() { PYTHONPATH=$R timeout -s INT $(($1 + 20)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget $1 --benchmark-quiet --results $OUT/gemm_b1.json --benchmark-json=/tmp/last.json "${@:2}" > /tmp/bench.txt 2>&1; grep -E "^(FAILED|ERROR|E  )|passed|failed" /tmp/bench.txt | cut -c1-160 | tail -5; PYTHONPATH=$R python3 benchmarks/summary_gemm.py /tmp/last.json | cut -c1-150; }
at swiglu; bench 14 -k "copy or (swiglu and not compiled and (32768x or 4096x))"
at fold; bench 18 -k "fold and not compiled and (32768x or 4096x)"
cat $OUT/ct.txt; at end
