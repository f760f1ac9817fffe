import sys; sys.path[:0]=["scratch","."]
from fit_terms import *
import re
from stof_cupy.ops.attention_model import explain
for line in open("/work/.device/1/choice.txt"):
    if not line.startswith("C"): continue
    m=re.match(r"C (\(.*?\)) (\w+) chosen (.*?) \(([\d.]+), ([\d.]+)\) (.*)",line)
    shape=eval(m[1]); c=case(shape,m[2],"relative"); e=explain(c,Constants())[0]
    t={n.strip("; ").strip():float(us) for n,us,_ in re.findall(r"([\w ./]+?) \(([\d.]+), ([\d.]+)\)",m[6])}
    n=name_of(e.candidate); print(shape,m[2],n,round(e.us,1),t.get(n),"regret",round(t.get(n,0)/min(t.values()),3))
