import sys, re, time
sys.path.insert(0,"scratch")
from dataclasses import replace
from concurrent.futures import ThreadPoolExecutor
from stof_cupy.jit import nvrtc
from stof_cupy.jit.attention_sm90 import *
from stof_cupy.jit.compile import compile_cubin
REL=("Relative",)
lib = nvrtc.load(None)
made=[c.roomy(x) for c in SM90_CONFIGS for x in (REL,("Alibi",))]
made+=[replace(c,packed=True) for c in made if c.scores==("Alibi",)]+[Sm90Config(192,192,64,2,scores=REL),Sm90Config(64,128,128,2,scores=("Alibi",))]
made=[c.roomy(x) for c in SM90_CONFIGS for x in (REL,("Alibi",))]
def one(c):
    for t in ("bfloat16",):
        k=compile_cubin(attention_sm90(t,c),"90a",lib,strict=False)
        notes={l.strip()[:110] for l in k.log.splitlines() if "C75" in l}
        m=re.findall(r"(\d+) bytes spill|Used (\d+) registers|(\d+) bytes stack",k.log)
        print(c.name, len(k.data) if hasattr(k,'data') else '', [l.strip() for l in k.log.splitlines() if 'spill' in l or 'registers' in l], notes, flush=True)
with ThreadPoolExecutor(2) as ex: list(ex.map(one, made))
