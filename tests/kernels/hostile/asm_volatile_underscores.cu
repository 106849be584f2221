extern "C" __global__ void f(int* p) { __asm__ __volatile__(".global .b8 d[4];" ::: "memory"); *p = 1; }
