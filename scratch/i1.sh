# racecheck of kernels without mbarriers, then arrays of biases (wide_bias.patch)
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD:$PWD/.gpu/site
bash scratch/next.sh minilm
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at warm; timeout 80 python3 scratch/race.py sm80 pair few norms statistics late
for part in norms statistics few pair late sm80; do
  at racecheck $part; timeout -k 5 50 compute-sanitizer --tool racecheck --racecheck-report all python3 scratch/race.py $part > $OUT/race_$part.txt 2>&1; echo "rc $?"
  grep -E "SUMMARY|ERROR|WARN|Race reported|^$part:|hazard" $OUT/race_$part.txt | cut -c1-220 | sort | uniq -c | sort -rn | head -12
done
at terms; timeout 60 python3 scratch/rest5.py warm > $OUT/warm.txt 2>&1; tail -2 $OUT/warm.txt; at warm done; timeout 60 python3 scratch/rest5.py terms
at end
