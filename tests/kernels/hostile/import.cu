#import "/etc/passwd"
extern "C" __global__ void f(int* p) { *p = 1; }
