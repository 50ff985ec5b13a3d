// Copies all leaves of a layout between memory of their own and their places in a slot.

typedef unsigned int u32;
typedef unsigned long long u64;

namespace {

constexpr u64 kUnitBytes = 64 << 10;
constexpr u32 kUnroll = 4;

struct Leaf {
  u64 address;
  u64 offset_bytes;  // in the slot
  u64 size_bytes;
};

// The last leaf whose units start at or before this one; leaves without bytes have no units.
__device__ __forceinline__ u32 leaf_of(const u32* units, u32 count, u32 unit) {
  u32 begin = 0, end = count;
  while (end - begin > 1) {
    const u32 middle = begin + (end - begin) / 2;
    (units[middle] <= unit ? begin : end) = middle;
  }
  return begin;
}

// All threads of the block copy one run, in words of T; both addresses have the same place in one.
template <typename T>
__device__ __forceinline__ void copy(u64 target, u64 source, u64 size_bytes) {
  const u64 head_bytes = min((sizeof(T) - target % sizeof(T)) % sizeof(T), size_bytes);
  const u64 words = (size_bytes - head_bytes) / sizeof(T);
  const u64 tail_bytes = size_bytes - head_bytes - words * sizeof(T);
  auto byte = [&](u64 at) {
    reinterpret_cast<unsigned char*>(target)[at] = reinterpret_cast<const unsigned char*>(source)[at];
  };
  if (threadIdx.x < head_bytes) byte(threadIdx.x);
  if (threadIdx.x < tail_bytes) byte(size_bytes - 1 - threadIdx.x);
  const T* from = reinterpret_cast<const T*>(source + head_bytes);
  T* to = reinterpret_cast<T*>(target + head_bytes);
  u64 at = threadIdx.x;
  for (; at + (kUnroll - 1) * blockDim.x < words; at += kUnroll * blockDim.x) {
    T values[kUnroll];
#pragma unroll
    for (u32 i = 0; i < kUnroll; ++i) values[i] = from[at + i * blockDim.x];
#pragma unroll
    for (u32 i = 0; i < kUnroll; ++i) to[at + i * blockDim.x] = values[i];
  }
  for (; at < words; at += blockDim.x) to[at] = from[at];
}

}  // namespace

// `units` counts the pieces of kUnitBytes before each leaf, and after the last. Scatter copies the
// other way: from the slot.
extern "C" __global__ void __launch_bounds__(256)
    gather(u64 slot, const Leaf* __restrict__ leaves, const u32* __restrict__ units, u32 count,
           u32 scatter) {
  const u32 total = units[count];
  for (u32 unit = blockIdx.x; unit < total; unit += gridDim.x) {
    const u32 index = leaf_of(units, count, unit);
    const Leaf leaf = leaves[index];
    const u64 done_bytes = (unit - units[index]) * kUnitBytes;
    const u64 size_bytes = min(kUnitBytes, leaf.size_bytes - done_bytes);
    const u64 own = leaf.address + done_bytes, place = slot + leaf.offset_bytes + done_bytes;
    const u64 target = scatter ? own : place, source = scatter ? place : own;
    switch ((target ^ source) % 16) {
      case 0:
        copy<uint4>(target, source, size_bytes);
        break;
      case 8:
        copy<u64>(target, source, size_bytes);
        break;
      case 4:
      case 12:
        copy<u32>(target, source, size_bytes);
        break;
      default:
        if ((target ^ source) % 2) {
          copy<unsigned char>(target, source, size_bytes);
        } else {
          copy<unsigned short>(target, source, size_bytes);
        }
    }
  }
}
