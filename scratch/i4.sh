export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton
export PYTHONPATH=/tmp/site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
cp scratch/earlier/gemm.json $OUT/gemm.json
timeout -s INT 235 python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$(cat .gpu/commit)" --budget 215 --benchmark-quiet --results $OUT/gemm.json --benchmark-json=/tmp/last.json --heavy -k "compiled and layer_norm and (512x or 4096x or 32768x)" > $OUT/bench.txt 2>&1
grep -E "^(FAILED|ERROR|E  )|passed|failed" $OUT/bench.txt | cut -c1-160 | tail -5
python3 benchmarks/summary_gemm.py $OUT/gemm.json > $OUT/summary.txt; grep -A19 "^layer_norm" $OUT/summary.txt | cut -c1-150; grep -iE "LayerNorm" $OUT/summary.txt | tail -3
