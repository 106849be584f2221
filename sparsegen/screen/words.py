"""The words that a kernel may use, in C++ and beyond it in CUDA, those it may not, operators, and the builtins."""

from __future__ import annotations

import re

ARITHMETIC = {"int", "long", "unsigned", "signed", "short", "char", "float", "double", "bool"}
SIGNED = {"int", "long", "int32_t", "int64_t", "INDEX", "OFFSET"}
QUALIFIERS = {"__restrict__", "__restrict", "const"}
LEADING = {"const", "constexpr", "auto", "alignas"}  # of a declaration, beside types
KEYWORDS = ARITHMETIC | QUALIFIERS | LEADING | {
    "if", "else", "for", "while", "do", "break", "continue", "return", "void", "inline", "sizeof", "static_cast",
    "true", "false", "extern",
}  # fmt: skip
FOREIGN = frozenset(  # of C++, and in no kernel
    """alignof and and_eq asm bitand bitor case catch class co_await co_return co_yield compl concept const_cast
    consteval constinit decltype default delete dynamic_cast enum explicit export friend goto mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
    static static_assert struct switch template this thread_local throw try typedef typeid typename typeof union using
    virtual volatile wchar_t xor xor_eq main""".split()  # noqa: SIM905
)
CUDA = frozenset(  # beside those of C++: what a generated kernel is held to; the screen knows what is forbidden
    """__global__ __device__ __shared__ __forceinline__ __noinline__ __launch_bounds__ __align__ struct switch case
    default volatile reinterpret_cast threadIdx blockIdx blockDim gridDim warpSize __syncthreads __syncwarp __shfl_sync
    __shfl_up_sync __shfl_down_sync __shfl_xor_sync __ballot_sync __any_sync __all_sync __activemask __match_any_sync
    __reduce_add_sync __reduce_max_sync __reduce_min_sync __popc __popcll __ffs __ffsll __clz __clzll __brev __ldg
    __ldcs __ldca __ldcg __stcs __stcg __threadfence __threadfence_block atomicAdd atomicMax atomicMin atomicCAS
    atomicExch fma fmaf __fma_rn __fmaf_rn min max abs fabs fabsf fmin fminf fmax fmaxf sqrt sqrtf rsqrt rsqrtf
    float2 float4 double2 int2 int4 uint2 uint4 longlong2 ulonglong2 make_float2 make_float4 make_double2 make_int2
    make_int4 make_uint2 make_uint4""".split()  # noqa: SIM905
)
CUDA_TYPES = frozenset("float2 float4 double2 int2 int4 uint2 uint4 longlong2 ulonglong2".split())  # noqa: SIM905
BINARY = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}

# Builtins, and which argument is a pointer; none is None. A builtin that no pattern matches is refused.
_IA32 = "__builtin_ia32_"
_VALUES = (
    "add|sub|mul|div|min|max|sqrt|and|or|xor|hadd|hsub|vfm|vfnm|blend|u?cmp|cvt|perm|vperm|shuf|unpck|align|extract|insert|"
    "vextract|vinsert|vec_ext|vec_set|compress|expand|movmsk|movddup|movs[hl]dup|pabs|padd|psub|pmul|pmin|pmax|pand|por|"
    "pxor|psll|psr|pro[lr]|pshuf|pblend|pbroadcast|broadcast|pmov|pcmp(eq|gt)|ptest|pternlog|punpck|palignr|"
    "k(and|or|xor|xnor|not|add|unpck|shift|mov)|rndscale|round|scalef|getexp|getmant|range|rcp|rsqrt|(p[ds]|si)(256|512)?_"
)
_NOT_VALUES = "mem|load|store|gather|scatter|movnt|dqu|carry|ccx"
BUILTINS: tuple[tuple[re.Pattern[str], int | None], ...] = (
    (re.compile(r"__builtin_(fma|fabs|fmin|fmax|sqrt|copysign|floor|ceil|trunc|rint)f?"), None),
    (re.compile(r"__builtin_(expect|shuffle|shufflevector|convertvector)"), None),
    (re.compile(r"__builtin_((popcount|clz|ctz|ffs)(l|ll)?|bswap(16|32|64))"), None),
    (re.compile(r"__builtin_(prefetch|assume_aligned|nontemporal_load)"), 0),
    (re.compile(r"__builtin_nontemporal_store"), 1),
    (re.compile(_IA32 + r"gather(3?(siv|div)\d+[sd][fi]|[dq]_(pd|ps|d|q))(256)?"), 1),
    (re.compile(_IA32 + r"scatter(siv|div)\d+[sd][fi]"), 0),
    (re.compile(_IA32 + r"mask(load|store)(pd|ps|d|q)(256)?"), 0),
    (re.compile(_IA32 + r"(load|store)([ua]p[sd]|dqu[sdhq]i)(128|256|512)_mask"), 0),
    (re.compile(_IA32 + r"(expandload|compressstore)[sd][fi](128|256|512)_maskz?"), 0),
    (re.compile(_IA32 + r"movnt(p[sd]|dq)(256|512)?"), 0),
    (re.compile(_IA32 + r"sfence"), None),
    (re.compile(_IA32 + rf"(?!\w*({_NOT_VALUES}))({_VALUES})\w*"), None),
)
