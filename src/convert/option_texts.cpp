#include <fmt/format.h>

#include "glu_ckpt/convert.hpp"
#include "layout/adapter_names.hpp"

namespace glu_ckpt {
namespace {

template <typename Value>
void remember(std::map<std::string, std::string>& texts, const std::string& name, const std::optional<Value>& value) {
  if (value) texts[name] = std::string(to_string(*value));
}

void remember(std::map<std::string, std::string>& texts, const std::string& name,
              const std::optional<std::string>& value) {
  if (value) texts[name] = *value;
}

}  // namespace

std::map<std::string, std::string> option_texts(const ConvertOptions& options) {
  std::map<std::string, std::string> texts;
  remember(texts, "naming", options.to.naming);
  remember(texts, "experts", options.to.experts);
  remember(texts, "bias_experts", options.to.bias_experts);
  remember(texts, "glu", options.to.glu);
  remember(texts, "shared_glu", options.to.shared_glu);
  remember(texts, "from_naming", options.from.naming);
  remember(texts, "from_glu", options.from.glu);
  remember(texts, "from_shared_glu", options.from.shared_glu);
  remember(texts, "from_optimizer_glu", options.from.optimizer_glu);
  remember(texts, "to", options.target);
  remember(texts, "format", options.format);
  if (options.to.scope == Scope::Experts) texts["scope"] = "experts";
  if (options.to.keep_unknown) texts["unknown"] = "keep";
  if (options.to.stack_layers) texts["stack_layers"] = "true";
  if (options.sha256_manifest) texts["manifest"] = "sha256";
  if (options.accept_changes) texts["accept_changes"] = "true";
  if (options.allow_foreign_order) texts["allow_foreign_order"] = "true";
  if (!options.from.config_file.empty()) texts["from_config"] = options.from.config_file;
  if (!options.from.encode.empty()) texts["encode"] = options.from.encode;
  if (!options.from.encode_as.empty()) texts["encode_as"] = options.from.encode_as;
  if (!options.from.merge.empty()) texts["merge"] = options.from.merge;
  if (!options.from.merge_as.empty()) texts["merge_as"] = options.from.merge_as;
  if (!options.from.from_lora.empty()) texts["from_lora"] = options.from.from_lora;
  if (!options.from.to_lora.empty()) texts["to_lora"] = options.from.to_lora;
  if (options.from.adapter_layout.ends_with(kSharedFactors)) texts["experts"] = "shared";
  if (options.from.grow_rank) texts["grow_rank"] = "true";
  if (!options.from.layers.empty()) texts["layers"] = options.from.layers;
  if (!options.from.keep_experts.empty()) texts["keep_experts"] = options.from.keep_experts;
  if (!options.from.dtypes.empty()) texts["dtype"] = options.from.dtypes;
  if (options.from.allow_narrowing) texts["allow_narrowing"] = "true";
  if (options.from.pad_experts > 0) texts["pad_experts"] = fmt::format("{}", options.from.pad_experts);
  if (options.from.unpad) texts["unpad"] = "true";
  if (!options.from.fill_from.empty()) texts["fill_from"] = options.from.fill_from;
  if (options.from.drop_mtp) texts["drop"] = "mtp";
  if (options.from.drop_vision) texts["drop"] += options.from.drop_mtp ? ",vision" : "vision";
  if (options.from.decode) texts["decode"] = *options.from.decode == Dtype::BF16 ? "bf16" : "f32";
  if (!options.from.decode_as.empty()) texts["decode_as"] = options.from.decode_as;
  if (options.from.drop_optimizer) texts["optimizer"] = "drop";
  if (options.max_shard_bytes != ConvertOptions().max_shard_bytes)
    texts["max_shard_size"] = std::to_string(options.max_shard_bytes);
  return texts;
}

}  // namespace glu_ckpt
