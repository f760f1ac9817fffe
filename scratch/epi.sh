export OUT=${OUT:-/tmp/out}; h=$PWD
for v in ${V:-v0 v2}; do (cd .gpu/trial/$v; STOF_CACHE_DIR=/tmp/stof_$v PYTHONPATH=$PWD timeout 50 python3 $h/scratch/epi_time.py $v >> $OUT/times.txt 2>&1); done
for v in ${T:-v2t}; do (cd .gpu/trial/$v; STOF_CACHE_DIR=/tmp/stof_$v PYTHONPATH=$PWD timeout 50 python3 $h/scratch/epi_time.py $v trace >> $OUT/trace.txt 2>&1); done
cat $OUT/times.txt $OUT/trace.txt | cut -c1-900
