/// Defaults of Source for formats that hold nothing but tensors.

#include "core/fail.hpp"
#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

std::string_view to_string(Format format) {
  switch (format) {
    case Format::Safetensors: return "safetensors";
    case Format::Torch: return "torch";
    case Format::TorchDist: return "torch-dist";
  }
  return {};
}

void Source::read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> outs) const {
  for (const std::span<std::byte> out : outs) {
    read(tensor, offset, out);
    offset += static_cast<i64>(out.size());
  }
}

const Structure& Source::structure() const {
  static const Structure empty;
  return empty;
}

std::vector<std::byte> Source::read_object(std::size_t object) const {
  fail(ErrorCode::Io, {path().string(), {}}, "{}: object {} was asked for; it has none", path().string(), object);
}

void Source::check_contents(int, const std::function<void(i64)>&) const {}

}  // namespace glu_ckpt
