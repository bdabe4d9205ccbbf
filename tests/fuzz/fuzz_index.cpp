/// Text of a model.safetensors.index.json. Whatever parses must print and parse back to the same map.

#include <cstdint>
#include <cstdlib>

#include "format/safetensors_index.hpp"
#include "glu_ckpt/error.hpp"

namespace {

using namespace glu_ckpt;

void check_round_trip(const ShardIndex& index) {
  std::map<std::string, std::string> weight_map;
  for (const auto& entry : index.entries) weight_map.emplace(entry.tensor, index.files.at(entry.file));
  if (weight_map.size() != index.entries.size()) std::abort();
  const ShardIndex back = parse_index(print_index(weight_map, 0, 0), "printed");
  if (back.files != index.files || back.entries.size() != index.entries.size()) std::abort();
  for (std::size_t i = 0; i < back.entries.size(); ++i)
    if (back.entries[i].tensor != index.entries[i].tensor || back.entries[i].file != index.entries[i].file)
      std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ShardIndex index;
  try {
    index = parse_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  check_round_trip(index);
  return 0;
}
