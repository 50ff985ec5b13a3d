// gather.cu as it is, run on the host: FOLDER SCATTER PHASE; reads slot, own, leaves and units from
// the folder (addresses there count from the start of `own`), writes slot.out and own.out.

#include "host_cuda.h"

#include "gather.cu"

namespace {

// A copy of the bytes that starts this far behind a multiple of 256.
std::vector<char> placed(const std::vector<char>& bytes, unsigned phase, char*& start) {
  std::vector<char> memory(bytes.size() + 512);
  start = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256 + phase;
  std::copy(bytes.begin(), bytes.end(), start);
  return memory;
}

}  // namespace

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  const auto slot = contents(folder + "slot"), own = contents(folder + "own");
  auto leaves = contents(folder + "leaves");
  const auto units = contents(folder + "units");
  char *slot_start, *own_start;
  const auto slot_memory = placed(slot, std::atoi(arguments[3]), slot_start);
  const auto own_memory = placed(own, 0, own_start);
  const u32 count = leaves.size() / sizeof(Leaf);
  auto* rows = reinterpret_cast<Leaf*>(leaves.data());
  for (u32 i = 0; i < count; ++i) rows[i].address += reinterpret_cast<u64>(own_start);

  blockDim.x = 64;
  gridDim.x = 3;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
      gather(reinterpret_cast<u64>(slot_start), rows, reinterpret_cast<const u32*>(units.data()),
             count, std::atoi(arguments[2]));
    }
  }
  std::ofstream(folder + "slot.out", std::ios::binary).write(slot_start, slot.size());
  std::ofstream(folder + "own.out", std::ios::binary).write(own_start, own.size());
}
