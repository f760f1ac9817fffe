set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton; mkdir -p $OUT $STOF_CACHE_DIR
R=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at old; PYTHONPATH=$PWD/.gpu/old:$PWD/scratch timeout 40 python3 scratch/ask_ab.py $OUT/old.json > /dev/null 2>$OUT/err.txt || tail -3 $OUT/err.txt
at new; PYTHONPATH=$R timeout 40 python3 scratch/ask_ab.py $OUT/new.json $OUT/old.json > $OUT/ab.txt 2>&1; grep -E "2048x8192|3072x2048|16384|16x|1x3072x768" $OUT/ab.txt | cut -c1-170
rm -f $STOF_CACHE_DIR/gemm-*.json $STOF_CACHE_DIR/*/gemm-*.json
at tests; PYTHONPATH=$R timeout -s INT -k 5 70 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu -n 14 -p xdist tests/ops/test_gemm_few_rows.py tests/jit/test_device.py tests/ops/test_gemm_sm90.py -k "not sm90 or swapped or 128x144 or 128x96" > $OUT/tests.txt 2>&1; tail -1 $OUT/tests.txt; grep -E "^(FAILED|ERROR|E  )" $OUT/tests.txt | cut -c1-160 | head
at gemm; REST=30 bash scratch/gemm.sh time compiled
