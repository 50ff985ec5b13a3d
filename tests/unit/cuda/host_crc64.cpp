// crc64.cu as it is, run on the host: FOLDER ORIGIN WARPS BEGIN END; reads data, bounds, units and
// tables from the folder, writes crcs.

#include "host_cuda.h"

// The two instructions that the source names have operands of these names.
#define asm(...) instruction(sum, a, b, c)
#include "crc64.cu"
#undef asm

uint4 shared[sizeof(Matrix) / sizeof(uint4)];

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  const auto data = contents(folder + "data"), bounds = contents(folder + "bounds");
  const auto units = contents(folder + "units"), packed = contents(folder + "tables");
  const auto* limits = reinterpret_cast<const u64*>(bounds.data());
  const u32 begin = std::atoi(arguments[4]), end = std::atoi(arguments[5]);
  if (packed.size() > sizeof(Tables) || packed.size() + alignof(Tables) <= sizeof(Tables)) return 3;
  static Tables tables;
  std::memcpy(&tables, packed.data(), packed.size());

  static const size_t kSlack = 1024;
  std::vector<char> memory(data.size() + 2 * kSlack, '\xA5');
  char* aligned = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
  char* origin = aligned + std::atoi(arguments[2]);
  std::memcpy(origin, data.data(), data.size());
  readable_first = reinterpret_cast<uintptr_t>(origin) + limits[begin];
  readable_last = reinterpret_cast<uintptr_t>(origin) + limits[end];

  std::vector<u64> crcs(bounds.size() / sizeof(u64) - 1);
  blockDim.x = 32;
  gridDim.x = std::atoi(arguments[3]);
  for (unsigned block = 0; block < gridDim.x; ++block) {
    std::vector<std::thread> warp;
    for (unsigned lane = 0; lane < 32; ++lane) {
      warp.emplace_back([&, lane, block] {
        threadIdx.x = lane;
        blockIdx.x = block;
        crc64(reinterpret_cast<u64>(origin), limits, reinterpret_cast<const u32*>(units.data()),
              begin, end, &tables, crcs.data());
      });
    }
    for (auto& thread : warp) thread.join();
  }
  std::ofstream(folder + "crcs", std::ios::binary)
      .write(reinterpret_cast<const char*>(crcs.data()), crcs.size() * sizeof(u64));
}
