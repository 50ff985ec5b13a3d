// What the kernels use of CUDA C++, on the host: the lanes of one warp are threads in lockstep.

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __noinline__
#define __restrict__
#define __shared__

using std::max;
using std::min;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct Index {
  unsigned x;
};

thread_local Index threadIdx;
thread_local Index blockIdx;
Index blockDim;
Index gridDim;
std::barrier<> lanes(32);

// Reads outside of these end the program: a kernel must not touch what is not its own.
uintptr_t readable_first, readable_last;

template <typename T>
T __ldg(const T* pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address + sizeof(T) <= readable_first || address >= readable_last) {
    std::fprintf(stderr, "a read outside of the segments\n");
    std::_Exit(2);
  }
  T value;
  std::memcpy(&value, pointer, sizeof(T));
  return value;
}

inline void __syncthreads() { lanes.arrive_and_wait(); }

inline int __syncthreads_or(int value) {
  static int passed[32];
  passed[threadIdx.x % 32] = value;
  lanes.arrive_and_wait();
  int any = 0;
  for (const int each : passed) any |= each;
  lanes.arrive_and_wait();
  return any != 0;
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned distance) {
  static T passed[32];
  passed[threadIdx.x % 32] = value;
  lanes.arrive_and_wait();
  const T other = passed[threadIdx.x % 32 ^ distance];
  lanes.arrive_and_wait();
  return other;
}

inline void atomicXor(unsigned long long* target, unsigned long long value) {
  __atomic_fetch_xor(target, value, __ATOMIC_RELAXED);
}

// lop3.b32 with the table 0x96.
inline void instruction(uint32_t& sum, uint32_t a, uint32_t b, uint32_t c) { sum = a ^ b ^ c; }

// mma.m16n8k256 of bits with `and` and count, from the PTX ISA's layout of fragments.
inline void instruction(int (&sum)[4], const uint4& a, uint32_t b, uint32_t c) {
  static uint4 left[32];
  static uint32_t right[32][2];
  const unsigned lane = threadIdx.x % 32;
  left[lane] = a;
  right[lane][0] = b;
  right[lane][1] = c;
  lanes.arrive_and_wait();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (unsigned k = 0; k < 4; ++k) {
      const uint4& bits = left[row % 8 * 4 + k];
      sum[i] += __builtin_popcount((row < 8 ? bits.x : bits.y) & right[4 * column + k][0]);
      sum[i] += __builtin_popcount((row < 8 ? bits.z : bits.w) & right[4 * column + k][1]);
    }
  }
  lanes.arrive_and_wait();
}

inline std::vector<char> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
