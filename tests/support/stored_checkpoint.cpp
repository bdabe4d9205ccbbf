#include "support/stored_checkpoint.hpp"

#include <fmt/format.h>

#include <fstream>

namespace glu_ckpt::support {

std::vector<MemoryTensor> read_tensors(const Source& source) {
  std::vector<MemoryTensor> tensors;
  for (std::size_t i = 0; i < source.inventory().tensors.size(); ++i) {
    const TensorRef& ref = source.inventory().tensors[i];
    tensors.push_back({ref.name, ref.dtype, ref.shape, std::vector<std::byte>(static_cast<std::size_t>(ref.bytes))});
    if (ref.bytes > 0) source.read(i, 0, tensors.back().bytes);
  }
  return tensors;
}

std::vector<MemoryTensor> read_tensors(const std::filesystem::path& path) { return read_tensors(*open_source(path)); }

void write_checkpoint(const std::filesystem::path& path, const std::vector<MemoryTensor>& tensors,
                      const std::string& config) {
  std::string header;
  std::string data;
  for (const MemoryTensor& tensor : tensors) {
    std::string shape;
    for (const i64 extent : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                          tensor.name, dtype_name(tensor.dtype), shape, data.size(), data.size() + tensor.bytes.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const u64 size = header.size();
  std::filesystem::create_directories(path);
  std::ofstream file(path / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size) << header << data;
  std::ofstream(path / "config.json", std::ios::binary) << config;
}

}  // namespace glu_ckpt::support
