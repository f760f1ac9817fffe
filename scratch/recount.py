import json,sys,math,collections
d=json.load(open('benchmarks/results/gemm_h200_2026-11-29.json'))
b=d['benchmarks']
print(len(b), collections.Counter((x['extra_info'].get('kind'),x['extra_info'].get('way')) for x in b))
dup=collections.Counter()
for x in b:
    i=x['extra_info']
    if 'kind' in i: dup[(i['kind'],tuple(i['shape']),i['way'])]+=1
print('dups',[k for k,v in dup.items() if v>1])
print(b[0]['name'], {k:v for k,v in b[0]['extra_info'].items() if k!='times'})
print(collections.Counter(str(x['extra_info'].get('commit')) for x in b))
for x in b:
    i=x['extra_info']
    if i.get('way') in('compile','copy'): print(i.get('way'),i.get('kind'),i.get('shape'),i.get('device_p50_ms'), i.get('gbytes_per_s'), i.get('facts'))
