# Session 15, call B: the rest of the suite on GPU 1, cells of the grid on GPU 0.  carry scratch .gpu/site .gpu/commit .gpu/minilm.1
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor; L=${L:-300}
(export CUDA_VISIBLE_DEVICES=1 STOF_CACHE_DIR=/tmp/stof PYTHONPATH=/tmp/site:$PWD:$PWD/benchmarks:$PWD/.gpu/site; bash scratch/next.sh minilm
 P="python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable"
 timeout $((L - 25)) $P -n 20 -p xdist tests stof_cupy --deselect tests/ops/test_attention_fuzz.py --ignore tests/runtime/test_program_gpu.py --ignore-glob "tests/ops/test_gemm*.py" > $OUT/suite.txt 2>&1; echo "suite $?"
 timeout 40 $P tests/runtime/test_program_gpu.py > $OUT/memory.txt 2>&1
 grep -hE "passed|failed" $OUT/suite.txt $OUT/memory.txt; grep -hE "^(FAILED|ERROR|E  )" $OUT/suite.txt $OUT/memory.txt | cut -c1-170 | sort | uniq -c | sort -rn | head -20) &
CUDA_VISIBLE_DEVICES=0 STOF_CACHE_DIR=/tmp/stofg0 PYTHONPATH=$PWD:$PWD/benchmarks timeout -s INT $L python3 scratch/grid2.py $((L - 75)) "$(cat .gpu/commit)" ${SIZES:-1x128 8x512} > $OUT/grid0.txt 2>&1
cp /tmp/engine_kept/engine_grid_h200.jsonl $OUT/; grep -hE "^ *[0-9]+ s gpu|Error:" $OUT/grid0.txt | grep -v E1129 | cut -c1-220
wait
