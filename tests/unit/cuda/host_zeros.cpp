// zeros.cu as it is, run on the host: FOLDER GRANULE_BYTES PHASE; reads run and written from the
// folder, writes written.out. What lies around the run is ones.

#include "host_cuda.h"

#include "zeros.cu"

namespace {

void look(u64 origin, u64 size_bytes, u64 granule_bytes, std::vector<char>& written) {
  blockDim.x = 32;
  gridDim.x = 3;
  auto* flags = reinterpret_cast<u8*>(written.data());
  for (unsigned block = 0; block < gridDim.x; ++block) {
    std::vector<std::thread> threads;
    for (unsigned lane = 0; lane < blockDim.x; ++lane) {
      threads.emplace_back([&, block, lane] {
        blockIdx.x = block;
        threadIdx.x = lane;
        zeros(origin, size_bytes, granule_bytes, written.size(), flags);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  const auto run = contents(folder + "run");
  auto written = contents(folder + "written");
  std::vector<char> memory(run.size() + 1024, -1);
  char* start = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
  start += std::atoi(arguments[3]);
  std::copy(run.begin(), run.end(), start);
  look(reinterpret_cast<u64>(start), run.size(), std::atoll(arguments[2]), written);
  std::ofstream(folder + "written.out", std::ios::binary).write(written.data(), written.size());
}
