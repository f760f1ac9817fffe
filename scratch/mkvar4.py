import sys; sys.path.insert(0,'/tmp/w')
from mkvar2 import *
tree('w0',True); tree('w9',True); tree('y1')
d=tree('y2'); no_together(d)
d=tree('y3'); no_early(d)
