_Pragma("push_macro(\"X\")")
extern "C" __global__ void f(int* p) { *p = 1; }
