"""The texts of an exported project, with @NAMES@ to be filled in: header, product in C++ and in CUDA, main, CMake."""

from __future__ import annotations

HEADER = """// @WHAT@
// @ABOUT@
// y = alpha A x + beta y for one sparse matrix A, @M@ x @N@ with @NNZ@ entries, whose arrays lie in data/.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sparsegen {

typedef @REAL@ real;
const int64_t rows = @M@, columns = @N@, entries = @NNZ@, width = @K@;  // width: columns of x and of y

class Product {
public:
    explicit Product(const std::string& folder);  // data/ of this project; std::runtime_error where it is not whole
    ~Product();
    // x: columns * width, @ORDER_X@; y: rows * width, @ORDER_Y@, not overlapping x; @PLACE@.
    // beta = 0 does not read y. One call at a time.
    void operator()(const real* x, real* y, real alpha = 1, real beta = 0);
    // The same in a plain loop over CSR, on the host.
    void plain(const real* x, real* y, real alpha = 1, real beta = 0) const;
    // What the two may differ by, componentwise: how sums of that length round.
    void bound(const real* x, const real* y, real alpha, real beta, std::vector<real>& out) const;

    struct Arrays;
    std::unique_ptr<Arrays> arrays;
};

}  // namespace sparsegen
"""

READ = """#include "product.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
@INCLUDES@

namespace sparsegen {
namespace {

struct Bytes {  // of one file: aligned to a cache line, with room behind
    void* data = nullptr;
    Bytes(const std::string& file, size_t size) {
        if (posix_memalign(&data, 64, size + 512)) throw std::bad_alloc();
        std::memset(static_cast<char*>(data) + size, 0, 512);
        FILE* in = std::fopen(file.c_str(), "rb");
        const size_t got = in ? std::fread(data, 1, size, in) : 0;
        const bool whole = in && got == size && std::fgetc(in) == EOF;
        if (in) std::fclose(in);
        if (!whole) { std::free(data); throw std::runtime_error(file + ": not the file of this project"); }
    }
    Bytes(const Bytes&) = delete;
    ~Bytes() { std::free(data); }
    template <class T> const T* as() const { return static_cast<const T*>(data); }
};

inline int64_t at_x(int64_t row, int64_t column) { return @AT_X@; }
inline int64_t at_y(int64_t row, int64_t column) { return @AT_Y@; }

}  // namespace
"""

PLAIN = """
void Product::plain(const real* x, real* y, real alpha, real beta) const {
    const @OFFSET_TYPE@* indptr = arrays->csr_indptr.as<@OFFSET_TYPE@>();
    const @INDEX_TYPE@* indices = arrays->csr_indices.as<@INDEX_TYPE@>();
    const real* values = arrays->csr_data.as<real>();
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < width; ++column) {
            real sum = 0;
            for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p) sum += values[p] * x[at_x(indices[p], column)];
            real& place = y[at_y(row, column)];
            place = beta == 0 ? alpha * sum : alpha * sum + beta * place;
        }
}

void Product::bound(const real* x, const real* y, real alpha, real beta, std::vector<real>& out) const {
    const @OFFSET_TYPE@* indptr = arrays->csr_indptr.as<@OFFSET_TYPE@>();
    const @INDEX_TYPE@* indices = arrays->csr_indices.as<@INDEX_TYPE@>();
    const real* values = arrays->csr_data.as<real>();
    out.assign(rows * width, 0);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < width; ++column) {
            double size = std::fabs(double(beta) * double(y[at_y(row, column)]));
            for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p)
                size += std::fabs(double(alpha) * double(values[p]) * double(x[at_x(indices[p], column)]));
            const double terms = 2 * (double(indptr[row + 1] - indptr[row]) + 3);  // both sums round
            out[at_y(row, column)] = real(terms * std::numeric_limits<real>::epsilon() * size) +
                                     std::numeric_limits<real>::min();
        }
}

}  // namespace sparsegen
"""

CPU = """
extern "C" {  // kernel.cpp
typedef void Door(const int64_t* words, const void* x, void* y, double alpha, double beta, uint32_t* status,
                  int64_t begin, int64_t end);
@DOORS@
}

struct Product::Arrays {
    @ARRAYS@
    @CSR@
    explicit Arrays(const std::string& folder) : @READ@ {}
};

Product::Product(const std::string& folder) : arrays(new Arrays(folder)) {}
Product::~Product() = default;

void Product::operator()(const real* x, real* y, real alpha, real beta) {
    std::vector<real> before;
    if (@CHECKS@ && beta != 0) before.assign(y, y + rows * width);
    uint32_t status = 0;
    auto launch = [&](Door* door, const int64_t* words, const int64_t* cuts, int pieces, real beta_here) {
#pragma omp parallel for schedule(dynamic) reduction(| : status)
        for (int piece = 0; piece < pieces; ++piece) {
            uint32_t own = 0;
            if (cuts[piece] < cuts[piece + 1])
                door(words, x, y, alpha, beta_here, &own, cuts[piece], cuts[piece + 1]);
            status |= own;
        }
    };
@ZERO@
@LAUNCHES@
    if (@CHECKS@ && status) {  // a sum was not finite, which padding cannot bear
        if (beta != 0) std::memcpy(y, before.data(), sizeof(real) * rows * width);
        plain(x, y, alpha, beta);
    }
}
"""

CPU_ZERO = """    for (int64_t i = 0; i < rows * width; ++i) y[i] = beta == 0 ? real(0) : real(beta * y[i]);"""

CUDA = """
}  // namespace sparsegen
@KERNELS@
namespace sparsegen {
namespace {

void ask(cudaError_t code) {
    if (code != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code));
}

struct Device {  // memory on the device, of a file or empty
    void* data = nullptr;
    explicit Device(size_t size) { ask(cudaMalloc(&data, size + 512)); ask(cudaMemset(data, 0, size + 512)); }
    Device(const std::string& file, size_t size) : Device(size) {
        const Bytes bytes(file, size);
        ask(cudaMemcpy(data, bytes.data, size, cudaMemcpyHostToDevice));
    }
    Device(const Device&) = delete;
    ~Device() { cudaFree(data); }
};

}  // namespace

struct Product::Arrays {
    @ARRAYS@
    @CSR@
    Device status{4};
    explicit Arrays(const std::string& folder) : @READ@ {}
};

Product::Product(const std::string& folder) : arrays(new Arrays(folder)) {}
Product::~Product() = default;

void Product::operator()(const real* x, real* y, real alpha, real beta) {
    Arrays& a = *arrays;
    Device saved(@CHECKS@ && beta != 0 ? sizeof(real) * rows * width : 0);
    if (@CHECKS@ && beta != 0) ask(cudaMemcpy(saved.data, y, sizeof(real) * rows * width, cudaMemcpyDeviceToDevice));
    if (@CHECKS@) ask(cudaMemset(a.status.data, 0, 4));
    void* status = a.status.data;
@ZERO@
@LAUNCHES@
    if (!@CHECKS@) return;
    uint32_t found = 0;
    ask(cudaMemcpy(&found, a.status.data, 4, cudaMemcpyDeviceToHost));
    if (!found) return;
    std::vector<real> host_x(columns * width), host_y(rows * width);  // a sum was not finite: once more, on the host
    ask(cudaMemcpy(host_x.data(), x, sizeof(real) * columns * width, cudaMemcpyDeviceToHost));
    if (beta != 0) ask(cudaMemcpy(host_y.data(), saved.data, sizeof(real) * rows * width, cudaMemcpyDeviceToHost));
    plain(host_x.data(), host_y.data(), alpha, beta);
    ask(cudaMemcpy(y, host_y.data(), sizeof(real) * rows * width, cudaMemcpyHostToDevice));
}
"""

CUDA_ZERO = """    if (beta == 0) {
        ask(cudaMemset(y, 0, sizeof(real) * rows * width));
    } else if (beta != 1) {
        sparsegen_scale<<<(rows * width + 255) / 256, 256>>>(y, rows * width, beta);
        ask(cudaGetLastError());
    }"""

MAIN = """// Checks the product against a plain loop, and times it. Exit code 0: it is right.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <vector>

#include "product.h"
@INCLUDES@
using namespace sparsegen;

static real drawn(uint64_t& state) {  // in (-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return real(double(int64_t(state) >> 11) / 4503599627370496.0);
}

static int checked(const char* folder) {
    Product product(folder);
    uint64_t state = 20260;
    std::vector<real> x(columns * width), y(rows * width), start(rows * width), expected, scale;
    for (real& each : x) each = drawn(state);
    for (real& each : start) each = drawn(state);
    double worst = 0;
    for (int turn = 0; turn < 2; ++turn) {  // beta = 0 on an y of NaN, then alpha and beta
        const real alpha = turn ? real(-1.5) : real(1), beta = turn ? real(0.5) : real(0);
        y = start;
        if (!turn) y.assign(y.size(), std::numeric_limits<real>::quiet_NaN());
        expected = start;
        product.plain(x.data(), expected.data(), alpha, beta);
        product.bound(x.data(), start.data(), alpha, beta, scale);
@CALL@
        for (size_t i = 0; i < y.size(); ++i) {
            const double off = std::fabs(double(y[i]) - double(expected[i]));
            const double part = off == 0 ? 0 : off / scale[i];
            worst = part <= worst ? worst : part;  // NaN counts
        }
    }
@TIME@
    std::printf("worst error %.3g of its bound, %.3g us a call, %.3g GFLOP/s\\n", worst, best * 1e6,
                2.0 * entries * width / best / 1e9);
    return worst <= 1 ? 0 : 1;
}

int main(int count, char** arguments) {
    try {
@SUPPORT@
        return checked(count > 1 ? arguments[1] : "data");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\\n", error.what());
        return 2;
    }
}
"""

CPU_CALL = """        product(x.data(), y.data(), alpha, beta);"""
CPU_TIME = """    double best = 1e30;
    for (int turn = 0; turn < 20; ++turn) {
        const auto begun = std::chrono::steady_clock::now();
        product(x.data(), y.data());
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        if (took.count() < best) best = took.count();
    }"""

CUDA_CALL = """        real *device_x, *device_y;
        const size_t bytes_x = sizeof(real) * x.size(), bytes_y = sizeof(real) * y.size();
        if (cudaMalloc(&device_x, bytes_x + 16) != cudaSuccess || cudaMalloc(&device_y, bytes_y + 16) != cudaSuccess)
            throw std::runtime_error("no memory on the device, or no device");
        cudaMemcpy(device_x, x.data(), bytes_x, cudaMemcpyHostToDevice);
        cudaMemcpy(device_y, y.data(), bytes_y, cudaMemcpyHostToDevice);
        product(device_x, device_y, alpha, beta);
        cudaMemcpy(y.data(), device_y, bytes_y, cudaMemcpyDeviceToHost);
        cudaFree(device_x);
        cudaFree(device_y);"""
CUDA_TIME = """    real *device_x, *device_y;
    cudaMalloc(&device_x, sizeof(real) * x.size() + 16);
    cudaMalloc(&device_y, sizeof(real) * y.size() + 16);
    cudaMemcpy(device_x, x.data(), sizeof(real) * x.size(), cudaMemcpyHostToDevice);
    double best = 1e30;
    for (int turn = 0; turn < 20; ++turn) {
        cudaDeviceSynchronize();
        const auto begun = std::chrono::steady_clock::now();
        product(device_x, device_y);
        cudaDeviceSynchronize();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        if (took.count() < best) best = took.count();
    }"""

CPU_CMAKE = """cmake_minimum_required(VERSION 3.16)
project(sparsegen_product CXX)
set(CMAKE_CXX_STANDARD 17)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# @WHAT@ The vectors of kernel.cpp have the width of the machine it was chosen on: @MACHINE@.
set(KERNEL_FLAGS "@FLAGS@" CACHE STRING "of kernel.cpp alone")
add_library(product STATIC kernel.cpp product.cpp)
set_source_files_properties(kernel.cpp PROPERTIES COMPILE_OPTIONS "${KERNEL_FLAGS}")
find_package(OpenMP)  # without it a call has one thread
if(OpenMP_CXX_FOUND)
  target_link_libraries(product PUBLIC OpenMP::OpenMP_CXX)
endif()
add_executable(check main.cpp)
target_link_libraries(check product)
enable_testing()
add_test(NAME check COMMAND check ${CMAKE_CURRENT_SOURCE_DIR}/data)
"""

CUDA_CMAKE = """cmake_minimum_required(VERSION 3.18)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES @ARCH@)
endif()
project(sparsegen_product CXX CUDA)
set(CMAKE_CUDA_STANDARD 17)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_library(product STATIC kernel.cu product.cu)
add_executable(check main.cu)
target_link_libraries(check product)
enable_testing()
add_test(NAME check COMMAND check ${CMAKE_CURRENT_SOURCE_DIR}/data)
"""
