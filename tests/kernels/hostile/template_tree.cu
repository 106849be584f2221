template <int A, int B, int C> struct T { static const int v = T<A - 1, B, C>::v + T<A, B - 1, C>::v + T<A, B, C - 1>::v; };
template <int B, int C> struct T<0, B, C> { static const int v = 1; };
template <int A, int C> struct T<A, 0, C> { static const int v = 1; };
template <int A, int B> struct T<A, B, 0> { static const int v = 1; };
extern "C" __global__ void f(int* p) { *p = T<150, 150, 150>::v; }
