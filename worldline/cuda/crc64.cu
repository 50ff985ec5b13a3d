// CRC-64/NVME of the segments of a slot: many warps to a segment, or many segments to a warp.
//
// crc64.py explains the mathematics and makes every table; names here are as there.

typedef unsigned int u32;
typedef unsigned long long u64;

namespace {

constexpr u32 kLanes = 32;
constexpr u32 kRows = 64;              // rows of a block: coefficients of y below the degree of P(y)
constexpr u32 kRowBytes = 4 * kLanes;  // a word in each lane
constexpr u32 kBlockBytes = kRows * kRowBytes;
constexpr u32 kGroup = 8;              // rows that are folded at once
constexpr u32 kSteps = 32;             // matrix products along the 8192 bits of a column
constexpr u32 kTiles = 4;              // of 16 bits of the result each
constexpr u64 kPolynomial = 0x9A6C9329AC4BC9B5ull;

// What all warps read again and again, in shared memory.
struct Matrix {
  uint4 fragments[kSteps][kTiles][kLanes];
  u64 weights[kTiles][4][kLanes];
};

// Tables in global memory; the matrix is copied from here.
struct Tables {
  Matrix matrix;
  u64 gaps[kRowBytes];
  u64 near_blocks[256];
  u64 far_blocks[2049];
};

// The bytes of one segment, by address.
struct Bytes {
  u64 first;
  u64 last;
};

__device__ __forceinline__ u64 times_x(u64 value) {
  return (value >> 1) ^ ((value & 1) ? kPolynomial : 0ull);
}

__device__ __noinline__ u64 multiply(u64 one, u64 other) {
  u64 product = 0;
#pragma unroll 4
  for (int bit = 0; bit < 64; ++bit) {
    product ^= (other >> 63) ? one : 0ull;
    other <<= 1;
    one = times_x(one);
  }
  return product;
}

__device__ __forceinline__ u32 word(u64 address) {
  return __ldg(reinterpret_cast<const u32*>(address));
}

// A word of the last row, with the bytes behind the segment zero; words wholly behind are not read.
// Without branches, so that the load is not waited for where it is issued.
__device__ __forceinline__ u32 word_before(u64 address, u64 last) {
  u32 value = 0;
  if (address < last) value = word(address);
  const u32 behind = address + 4 > last ? u32(address + 4 - last) : 0;
  return value & (~0u >> 8 * (behind % 4));
}

// The same for a row that may also begin before the segment.
__device__ __forceinline__ u32 word_within(u64 address, const Bytes& bytes) {
  if (address + 4 <= bytes.first) return 0;
  const u32 value = word_before(address, bytes.last);
  return address < bytes.first ? value & ~0u << 8 * u32(bytes.first - address) : value;
}

// One instruction; left to itself, the compiler makes two of some by sharing other parts.
__device__ __forceinline__ u32 xor3(u32 a, u32 b, u32 c) {
  u32 sum;
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

// The xor of every subset of four words.
__device__ __forceinline__ void subsets(u32 (&sums)[16], u32 a, u32 b, u32 c, u32 d) {
  sums[0] = 0;
  sums[1] = a;
  sums[2] = b;
  sums[3] = a ^ b;
  sums[4] = c;
  sums[5] = a ^ c;
  sums[6] = b ^ c;
  sums[7] = a ^ b ^ c;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) sums[i + 8] = sums[i] ^ d;
}

// Appends group G of a block: state * y^8 + rows, modulo P(y). The coefficient of y^i lies in
// state[(i - 8 * G) % 64] before and eight places lower after, so that nothing has to move.
template <u32 G>
__device__ __forceinline__ void fold(u32 (&state)[kRows], const u32 (&rows)[kGroup]) {
  // Bit i of carries[k]: y^i in y^(64 + k) modulo P(y).
  constexpr u64 carries[kGroup] = {0xAD93D23594C93659ull, 0xF6B4765EBD5B5AEBull,
                                   0x40FB3E88EE7F838Full, 0x81F67D11DCFF071Eull,
                                   0xAE7F28162D373865ull, 0xF16D8219CEA74693ull,
                                   0x4F48D6060987BB7Full, 0x9E91AC0C130F76FEull};
  constexpr u32 place = 2 * kRows - kGroup * (G + 1);  // of y^0 after
  u32 low[16], high[16];
  subsets(low, state[place % kRows], state[(place + 1) % kRows], state[(place + 2) % kRows],
          state[(place + 3) % kRows]);
  subsets(high, state[(place + 4) % kRows], state[(place + 5) % kRows], state[(place + 6) % kRows],
          state[(place + 7) % kRows]);
#pragma unroll
  for (u32 i = 0; i < kRows; ++i) {
    u32 low_subset = 0, high_subset = 0;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      low_subset |= u32(carries[k] >> i & 1) << k;
      high_subset |= u32(carries[k + 4] >> i & 1) << k;
    }
    u32& coefficient = state[(place + i) % kRows];
    const u32 shifted = i < kGroup ? rows[kGroup - 1 - i] : coefficient;
    coefficient = xor3(shifted, low[low_subset], high[high_subset]);
  }
}

// Rows of group G of the block at this lane's address; only a block's last row can reach beyond the
// segment, since its end is what the blocks are aligned to.
template <u32 G>
__device__ __forceinline__ void load(u32 (&rows)[kGroup], u64 block, u64 last) {
#pragma unroll
  for (u32 row = 0; row < kGroup; ++row) {
    const u64 address = block + (kGroup * G + row) * kRowBytes;
    rows[row] = G * kGroup + row + 1 < kRows ? word(address) : word_before(address, last);
  }
}

// The first block is the state itself; it may begin before the segment.
__device__ __forceinline__ void begin(u32 (&state)[kRows], u64 block, const Bytes& bytes) {
  if (block - 4 * (threadIdx.x % kLanes) >= bytes.first) {
#pragma unroll
    for (u32 row = 0; row + 1 < kRows; ++row) {
      state[kRows - 1 - row] = word(block + row * kRowBytes);
    }
    state[0] = word_before(block + (kRows - 1) * kRowBytes, bytes.last);
  } else {
#pragma unroll
    for (u32 row = 0; row < kRows; ++row) {
      state[kRows - 1 - row] = word_within(block + row * kRowBytes, bytes);
    }
  }
}

// The rows of all blocks as one block of the same remainder, loads running one to two groups ahead.
__device__ __forceinline__ void fold_blocks(u32 (&state)[kRows], u64 block, u32 count,
                                            const Bytes& bytes) {
  u32 even[kGroup], odd[kGroup];
  if (count > 1) {
    load<0>(even, block + kBlockBytes, bytes.last);
    load<1>(odd, block + kBlockBytes, bytes.last);
  }
  begin(state, block, bytes);
  for (u32 left = count - 1; left; --left) {
    block += kBlockBytes;
    fold<0>(state, even), load<2>(even, block, bytes.last);
    fold<1>(state, odd), load<3>(odd, block, bytes.last);
    fold<2>(state, even), load<4>(even, block, bytes.last);
    fold<3>(state, odd), load<5>(odd, block, bytes.last);
    fold<4>(state, even), load<6>(even, block, bytes.last);
    fold<5>(state, odd), load<7>(odd, block, bytes.last);
    fold<6>(state, even);
    if (left > 1) load<0>(even, block + kBlockBytes, bytes.last);
    fold<7>(state, odd);
    if (left > 1) load<1>(odd, block + kBlockBytes, bytes.last);
  }
}

// Adds the counts of common bits of 16 rows and 8 columns of 256 bits.
__device__ __forceinline__ void multiply_add(int (&sum)[4], const uint4& a, u32 b, u32 c) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "r"(c));
}

// The remainder of a block modulo P(x), the same in every lane.
__device__ __forceinline__ u64 remainder(const u32 (&state)[kRows], const Matrix& matrix) {
  const u32 lane = threadIdx.x % kLanes;
  int sums[kTiles][4] = {};
#pragma unroll
  for (u32 step = 0; step < kSteps; ++step) {
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
      multiply_add(sums[tile], matrix.fragments[step][tile][lane], state[2 * step],
                   state[2 * step + 1]);
    }
  }
  u64 value = 0;
#pragma unroll
  for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if (sums[tile][i] & 1) value ^= matrix.weights[tile][i][lane];
    }
  }
#pragma unroll
  for (u32 distance = 16; distance; distance /= 2) {
    value ^= __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// One finished part of a segment; each lane of a warp keeps one, so that 32 are moved to their
// places at the cost of one.
struct Part {
  u64 value;
  u32 segment;
  u32 gap_bytes;    // from the end of the segment to that of its last block
  u32 blocks_behind;
};

__device__ __forceinline__ void deliver(const Part& part, const Tables& tables, u64* crcs) {
  u64 factor = multiply(tables.near_blocks[part.blocks_behind % 256], tables.gaps[part.gap_bytes]);
  if (part.blocks_behind >= 256) {
    factor = multiply(factor, tables.far_blocks[part.blocks_behind / 256]);
  }
  atomicXor(crcs + part.segment, multiply(part.value, factor));
}

// The last segment of [begin, end) whose units start at or before this one.
__device__ __forceinline__ u32 segment_of(const u32* units, u32 begin, u32 end, u32 unit) {
  while (end - begin > 1) {
    const u32 middle = begin + (end - begin) / 2;
    (units[middle] <= unit ? begin : end) = middle;
  }
  return begin;
}

}  // namespace

// Adds the CRC, with initial value and final xor zero, of each segment in [begin, end) to `crcs`.
//
// Segment i is bounds[i]..bounds[i + 1] from `origin`, an address. Its work is units[i]..units[i + 1]:
// one for what a segment costs whatever its length, and one for each of its blocks. All warps get
// equal shares of the units.
extern "C" __global__ void __launch_bounds__(512, 1)
    crc64(u64 origin, const u64* __restrict__ bounds, const u32* __restrict__ units, u32 begin,
          u32 end, const Tables* __restrict__ tables, u64* crcs) {
  extern __shared__ uint4 shared[];
  const uint4* source = reinterpret_cast<const uint4*>(&tables->matrix);
  for (u32 i = threadIdx.x; i < sizeof(Matrix) / sizeof(uint4); i += blockDim.x) {
    shared[i] = source[i];
  }
  __syncthreads();
  const Matrix& matrix = *reinterpret_cast<const Matrix*>(shared);

  const u32 lane = threadIdx.x % kLanes;
  const u64 warps = blockDim.x / kLanes * gridDim.x;
  const u64 warp = threadIdx.x / kLanes * gridDim.x + blockIdx.x;
  const u64 total = units[end] - units[begin];
  const u32 low = units[begin] + u32(total * warp / warps);
  const u32 high = units[begin] + u32(total * (warp + 1) / warps);
  if (low == high) return;

  Part part = {};
  u32 count = 0;
  for (u32 segment = segment_of(units, begin, end, low); segment < end && units[segment] < high;
       ++segment) {
    const u32 start = units[segment] + 1, stop = units[segment + 1];
    const u32 from = max(low, start), to = min(high, stop);
    if (from >= to) continue;
    const Bytes bytes = {origin + bounds[segment], origin + bounds[segment + 1]};
    const u64 padded = (bytes.last + kRowBytes - 1) / kRowBytes * kRowBytes;
    u32 state[kRows];
    fold_blocks(state, padded - u64(stop - from) * kBlockBytes + 4 * lane, to - from, bytes);
    const u64 value = remainder(state, matrix);
    if (lane == count % kLanes) part = {value, segment, u32(padded - bytes.last), stop - to};
    if (++count % kLanes == 0) deliver(part, *tables, crcs);
  }
  if (lane < count % kLanes) deliver(part, *tables, crcs);
}
