import sys, subprocess, re, collections, pathlib
sys.path.insert(0,'/work/main')
def decode(path):
    t=subprocess.run(['/tmp/venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvdisasm','-c','-hex',path],capture_output=True,text=True).stdout
    ins=[];labels={};cur=None
    for l in t.splitlines():
        m=re.match(r'\s*(\.L_x?_?\d+):',l)
        if m: labels[m.group(1)]=len(ins); continue
        m=re.search(r'/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* (0x[0-9a-f]{16}) \*/',l)
        if m: cur=[int(m.group(1),16),m.group(2),int(m.group(3),16),0]; ins.append(cur); continue
        m=re.search(r'^\s+/\* (0x[0-9a-f]{16}) \*/',l)
        if m and cur is not None: cur[3]=int(m.group(1),16); cur=None
    out=[]
    for a,x,lo,hi in ins:
        c=hi>>41
        out.append((a,x,c&15,(c>>4)&1,(c>>5)&7,(c>>8)&7,(c>>11)&63))
    return out,labels
if __name__=='__main__':
    from stof_cupy.jit.attention_kernels import *
    from stof_cupy.jit.compile import compile_cubin
    from stof_cupy.jit import nvrtc
    dim=int(sys.argv[1]); i=int(sys.argv[2])
    spec=attention_sm80('float16',dim,SHAPES[dim][i])
    c=compile_cubin(spec,'90a',nvrtc.load()); pathlib.Path('/tmp/x.cubin').write_bytes(c.image)
    ins,labels=decode('/tmp/x.cubin')
    with open('/tmp/x.lst','w') as f:
        inv=collections.defaultdict(list)
        for k,v in labels.items(): inv[v].append(k)
        for k,(a,x,st,y,w,r,wm) in enumerate(ins):
            for l in inv[k]: f.write(l+':\n')
            f.write(f'{k:5} st{st:2} {"Y" if not y else " "} w{w if w!=7 else "-"} r{r if r!=7 else "-"} m{wm:06b}  {x}\n')
    s,e=[(labels[m.group(1)],k) for k,(a,x,*_) in enumerate(ins) if (m:=re.search(r'BRA.*\(?(\.L_x?_?\d+)',x)) and m.group(1) in labels and labels[m.group(1)]<=k and sum('HMMA' in q[1] for q in ins[labels[m.group(1)]:k+1])>=64][0]
    by=collections.Counter();n=collections.Counter()
    for a,x,st,*_ in ins[s:e+1]:
        o=re.sub(r'^@!?U?P\d+\s+','',x).split()[0].split('.')[0]; by[o]+=st;n[o]+=1
    print(c.registers,s,e); print([(o,n[o],v) for o,v in by.most_common(25)])
