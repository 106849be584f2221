#define JOIN(a, b) a##b
extern "C" __global__ void f(int* p) { JOIN(as, m)(".include \"/etc/passwd\";"); *p = 1; }
