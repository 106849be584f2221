extern "C" __global__ void f(int* p) { static int calls; *p = ++calls; }
