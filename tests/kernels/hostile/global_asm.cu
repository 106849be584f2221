asm(".global .align 4 .b8 kept[1073741824];");
extern "C" __global__ void f(int* p) { *p = 1; }
