/// Text of a config.json, and the same bytes as a glu_ckpt.json: both come with a checkpoint.

#include <cstdint>
#include <cstdlib>

#include "format/model_config.hpp"
#include "format/record_file.hpp"
#include "glu_ckpt/error.hpp"

namespace {

using namespace glu_ckpt;

void read_config(std::string_view text) {
  try {
    const ModelHints hints = parse_config(text, "fuzz");
    if (hints.num_hidden_layers.value_or(1) < 1 || hints.num_experts.value_or(0) < 0) std::abort();
  } catch (const Error&) {
  }
}

void read_record(std::string_view text) {
  RecordFile content;
  try {
    content = parse_record_json(text, "fuzz");
  } catch (const Error&) {
    return;
  }
  const RecordFile back = parse_record_json(print_record_json(content), "printed");
  if (back.record != content.record || back.options != content.options || back.files != content.files ||
      back.metadata != content.metadata)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_config(text);
  read_record(text);
  return 0;
}
