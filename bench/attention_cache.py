"""LRU of L2 for attention blocks: bytes from DRAM and makespan, for heads that take turns."""
import sys, heapq
from collections import OrderedDict
S=8192; B,H=2,16
ends=[0,1000,3000,3500,6000,8192]
def seq(i):
    for a,b in zip(ends,ends[1:]):
        if a<=i<b: return a,b
def rng(mask,lo,hi):  # columns seen by rows lo..hi (symmetric masks except causal)
    if mask=='packed': return seq(lo)[0], seq(hi-1)[1]
    if mask=='window': return max(0,lo-1024), min(S,hi+1024)
    if mask=='full': return 0,S
def tiles(mask,rows,cols,r,transposed):
    lo,hi=r*rows,(r+1)*rows
    if mask=='blocks':
        out=[]
        for c in range(S//cols):
            q,k=(lo//128,c*cols//128) if not transposed else (c*cols//128,lo//128)
            if (q*64+k)*7919%10<3: out.append(c)
        return out
    if mask=='causal':
        return list(range(0,-(-hi//cols))) if not transposed else list(range(lo//cols,S//cols))
    a,b=rng(mask,lo,hi); return list(range(a//cols,-(-b//cols)))
def run(mask,kernel,D,together,slots,cap):
    rows,cols={'fwd':(128 if D==128 else 64,128),'keys':(128 if D==128 else 64,64),'queries':(128 if D==128 else 64,64)}[kernel]
    tr=kernel=='keys'
    lists=[tiles(mask,rows,cols,r,tr) for r in range(S//rows)]
    order=sorted(range(S//rows),key=lambda r:-len(lists[r])) if mask!='full' else list(range(S//rows))
    seqn=[]
    for b in range(B):
        for h0 in range(0,H,together):
            for r in order:
                for h in range(h0,min(H,h0+together)): seqn.append((b,h,r))
    lru=OrderedDict(); used=0; dram=0; width=D*2
    def touch(key,size):
        nonlocal used,dram
        if key in lru: lru.move_to_end(key); return
        dram+=size; lru[key]=size; used+=size
        while used>cap: _,s=lru.popitem(last=False); used-=s
    it=iter(seqn); t=0; active=[]
    BES=4 if cols==128 else 6
    heap=[(0.0,i,None,0) for i in range(slots)]
    heapq.heapify(heap); end=0
    resident={'fwd':1,'keys':2,'queries':3}[kernel]
    while heap:
        time,i,blk,at=heapq.heappop(heap)
        if blk is None:
            blk=next(it,None)
            if blk is None: end=max(end,time); continue
            b,h,r=blk
            for x in range(resident): touch(('r',x,b,h,r) ,rows*width)
            heapq.heappush(heap,(time+BES/2,i,blk,0)); continue
        b,h,r=blk; L=lists[r]
        if at<len(L):
            c=L[at]; touch(('k',b,h,c),cols*width); touch(('v',b,h,c),cols*width)
            heapq.heappush(heap,(time+1,i,blk,at+1))
        else:
            out={'fwd':1,'keys':2,'queries':1}[kernel]
            for x in range(out): touch(('o',x,b,h,r),rows*width)  # written, takes room
            heapq.heappush(heap,(time+BES/2,i,None,0))
    work=sum(len(lists[r])+BES for r in range(S//rows))*B*H/slots
    wr={'fwd':1,'keys':2,'queries':1}[kernel]*B*H*S*width
    return (dram-wr)/1e6, end/work
cap=float(sys.argv[1])*1e6
print('calibration (measured MB): packed 302 window 248 causal 354 full 202')
for m in ('packed','window','causal'): print(m,'fwd D128 h8',['%.0f MB, makespan %.3f'%run(m,'fwd',128,8,132,cap)])
print('full fwd',run('full','fwd',128,1,132,cap)); 
if len(sys.argv)>2:
    import itertools
    for D,slots in ((128,{'fwd':132,'keys':132,'queries':132}),(64,{'fwd':396,'keys':264,'queries':396})):
        for kernel in ('fwd','keys','queries'):
            for m in ('packed','window','causal','blocks'):
                print(D,kernel,m,'  '.join('h%d: %.0f MB %.3f'%((h,)+run(m,kernel,D,h,slots[kernel],cap)) for h in (1,2,4,8)), 'full: %.0f MB'%run('full',kernel,D,1,slots[kernel],cap)[0],flush=True)
