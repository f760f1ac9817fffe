# racecheck of the last kernels, fuzz and memcheck of Hopper's attention, MiniLM's first half
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD:$PWD/.gpu/site TRITON_CACHE_DIR=/tmp/triton
bash scratch/next.sh minilm
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at race; timeout 60 python3 scratch/race.py few 2>&1 | tail -1; timeout -k 5 50 compute-sanitizer --tool racecheck --racecheck-report all python3 scratch/race.py few 2>&1 | grep -E "SUMMARY|few:|Race" | head
at fuzz; OUT= timeout 75 python3 -m tests.ops.fuzz_attention --no-others --cases 2500 --processes 16 --limit 60 > "$OUT/fuzz.txt" 2>&1; tail -6 "$OUT/fuzz.txt" | cut -c1-200
at memcheck; OUT= setsid timeout -k 5 60 compute-sanitizer --tool memcheck --target-processes all python3 -m tests.ops.fuzz_attention --no-others --cases 24 --processes 4 --limit 45 > "$OUT/memcheck.txt" 2>&1 & group=$!; wait $group; kill -9 -- -$group 2> /dev/null
grep -E "SUMMARY|Invalid|cases|failures" "$OUT/memcheck.txt" | sort | uniq -c | tail -8
at end
