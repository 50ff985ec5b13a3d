// Marks the granules of a run of memory that hold anything but zeros.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace {

constexpr u64 kUnitBytes = 64 << 10;  // that a block of threads reads before it looks for more
constexpr u64 kWordBytes = sizeof(uint4);
constexpr u32 kUnroll = 4;

__device__ __forceinline__ u32 bits(const uint4& word) {
  return word.x | word.y | word.z | word.w;
}

// The bits that this thread finds in its share of [begin, end), addresses; the threads of a block
// read every byte of it.
__device__ __forceinline__ u32 found(u64 begin, u64 end) {
  const u64 first = min((begin + kWordBytes - 1) / kWordBytes * kWordBytes, end);
  const u64 last = max(end / kWordBytes * kWordBytes, first);
  u32 seen = 0;
  if (threadIdx.x < first - begin) seen |= reinterpret_cast<const u8*>(begin)[threadIdx.x];
  if (threadIdx.x < end - last) seen |= reinterpret_cast<const u8*>(last)[threadIdx.x];
  const uint4* words = reinterpret_cast<const uint4*>(first);
  const u64 count = (last - first) / kWordBytes;
  u64 at = threadIdx.x;
  for (; at + (kUnroll - 1) * blockDim.x < count; at += kUnroll * blockDim.x) {
    uint4 values[kUnroll];
#pragma unroll
    for (u32 i = 0; i < kUnroll; ++i) values[i] = words[at + i * blockDim.x];
#pragma unroll
    for (u32 i = 0; i < kUnroll; ++i) seen |= bits(values[i]);
  }
  for (; at < count; at += blockDim.x) seen |= bits(words[at]);
  return seen;
}

}  // namespace

// Granule i is the bytes from i * granule_bytes on, of `size_bytes` at `origin`, an address. Where
// written[i] is set already, nothing more is read of it. The first parts of all granules come
// before the second ones: most granules that hold anything show it there.
extern "C" __global__ void __launch_bounds__(256)
    zeros(u64 origin, u64 size_bytes, u64 granule_bytes, u32 granule_count, volatile u8* written) {
  const u64 total = (granule_bytes + kUnitBytes - 1) / kUnitBytes * granule_count;
  for (u64 unit = blockIdx.x; unit < total; unit += gridDim.x) {
    const u64 granule = unit % granule_count, part = unit / granule_count;
    const u64 start = granule * granule_bytes;
    const u64 begin = start + part * kUnitBytes;
    const u64 end = min(min(begin + kUnitBytes, start + granule_bytes), size_bytes);
    if (begin >= end) continue;
    // Others may set it meanwhile: all threads of the block have to see the same.
    if (__syncthreads_or(written[granule])) continue;
    if (__syncthreads_or(found(origin + begin, origin + end)) && threadIdx.x == 0) {
      written[granule] = 1;
    }
  }
}
