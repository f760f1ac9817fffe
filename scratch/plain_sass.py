import sys, subprocess, hashlib, re
from stof_cupy.jit import nvrtc
from stof_cupy.jit.attention_sm90 import *
from stof_cupy.jit.compile import compile_cubin
from dataclasses import replace
lib=nvrtc.load(None)
P=(Sm90Config(64,64,n=128,warpgroups=3,halves=True),Sm90Config(128,128,n=128,warpgroups=2),Sm90Config(64,64,128,2,scores=("Alibi",)),Sm90Config(64,64,64,1,blocks=3))
for c in P:
    k=compile_cubin(attention_sm90("bfloat16",c),"90a",lib,strict=False)
    f=f"/tmp/sass/x.cubin"; open(f,"wb").write(k.image if hasattr(k,'image') else k.code)
    out=subprocess.run(["/tmp/venv/lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump","-sass",f],capture_output=True,text=True).stdout
    code=[re.sub(r"/\*[^*]+\*/|c\[0x0\]\[0x[0-9a-f]+\]","",l).strip() for l in out.splitlines() if re.match(r"\s+/\*[0-9a-f]{4,5}\*/",l)]
    print(c.name,len(code),hashlib.md5("\n".join(code).encode()).hexdigest())
