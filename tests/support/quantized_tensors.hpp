#pragma once
/// Tensors of quantized models, by names and shapes, and what find_quantized() says of them.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "quant/find_quantized.hpp"
#include "quant/quant_config.hpp"
#include "support/convert.hpp"

namespace glu_ckpt::support {

inline MemoryTensor stored(std::string name, Dtype dtype, std::vector<i64> shape) {
  i64 elements = 1;
  for (const i64 extent : shape) elements *= extent;
  return {std::move(name), dtype, std::move(shape),
          std::vector<std::byte>(static_cast<std::size_t>(elements * dtype_bits(dtype) / 8))};
}

inline Quantization found(const std::vector<MemoryTensor>& tensors, const QuantConfig& config = {}) {
  return find_quantized(support::make_inventory(tensors), config);
}

inline QuantConfig method(std::string name) {
  QuantConfig config;
  config.method = std::move(name);
  return config;
}

/// The only weight that is found.
inline QuantizedTensor only(const std::vector<MemoryTensor>& tensors, const QuantConfig& config = {}) {
  const Quantization quantization = found(tensors, config);
  EXPECT_EQ(quantization.tensors.size(), 1U);
  EXPECT_EQ(quantization.companions.size(), tensors.size() - 1);
  return quantization.tensors.empty() ? QuantizedTensor() : quantization.tensors.front();
}

using Cell = std::pair<i64, i64>;
inline Cell cell(const QuantizedTensor& weight) { return {weight.cell_rows, weight.cell_cols}; }

/// Why no weight of these has numbers; nothing where they have.
inline std::string why_undecodable(const std::vector<MemoryTensor>& tensors, const std::string& config) {
  const Quantization quantization = found(tensors, read_quant_config(R"({"quantization_config": )" + config + "}"));
  return quantization.undecodable ? quantization.undecodable->tensor + ": " + quantization.undecodable->why : "";
}

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline const std::vector<MemoryTensor>& packed_int4() {
  static const std::vector<MemoryTensor> tensors = {stored("a.weight_packed", Dtype::I32, {96, 8}),
                                                    stored("a.weight_scale", Dtype::BF16, {96, 2})};
  return tensors;
}

}  // namespace glu_ckpt::support
