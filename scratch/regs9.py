import sys,pathlib
sys.path.insert(0,'/work/main')
from dataclasses import replace
from stof_cupy.jit.attention_kernels import *
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit import nvrtc
v=sys.argv[1]
l=nvrtc.load(next(pathlib.Path(f'/tmp/nv/{v}').rglob('libnvrtc.so.1?'))) if v!='13.5' else nvrtc.load(pathlib.Path('/tmp/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13'))
for d,s in [(64,Shape(4,16,2,True,4)),(64,Shape(4,16,2,True,1,3)),(32,Shape(4,16,2,True,4)),(32,Shape(4,16,2,True,1,3)),(64,Shape(4,32,2,True,2)),(128,Shape(4,16,1,False,3)),(128,Shape(4,32,1,False,2)),(128,Shape(2,32,1,False,4))]:
  for a in sys.argv[2:]:
    spec=attention_sm80('float16',d,s)
    if not spec.supports(a): continue
    try: c=compile_cubin(replace(spec,may_spill=True),a,l); print(l.version,a,d,s.name,c.registers,c.spill_bytes,flush=True)
    except Exception as e: print(str(e)[:100])
