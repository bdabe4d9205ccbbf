#include <charconv>
#include <string_view>

#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

int cuda_index(const std::string& device) {
  if (device == "cuda") return 0;
  int index = -1;
  const std::string_view text(device);
  if (text.starts_with("cuda:")) {
    const auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), index);
    if (error != std::errc() || end != text.data() + text.size()) index = -1;
  }
  if (index < 0) fail(ErrorCode::Usage, {}, "'{}' is not a GPU: use cuda or cuda:N", device);
  return index;
}

}  // namespace glu_ckpt
