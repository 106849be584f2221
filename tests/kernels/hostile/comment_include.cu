/* a comment
   over two lines */ #/* and */include/* one */"/etc/passwd"
extern "C" __global__ void f(int* p) { *p = 1; }
