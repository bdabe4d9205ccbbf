/// A configuration of quantized weights beside weights that are not quantized: `inspect` calls it a problem, no output
/// has it, and torch_dtype is what was written. Configurations x dtypes x places x commands.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/model.hpp"
#include "io/directory.hpp"
#include "support/memory_checkpoint.hpp"
#include "support/memory_system.hpp"

namespace glu_ckpt {
namespace {

using Shape = std::vector<i64>;

constexpr i64 kHidden = 16, kWidth = 8, kWords = 20, kHeads = 2, kHead = 8;

/// What writers put under quantization_config, of each format once.
const std::map<std::string, std::string> kConfigs = {
    {"fp8 in blocks", R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"},
    {"fp8", R"({"quant_method": "fp8", "activation_scheme": "static"})"},
    {"fbgemm", R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})"},
    {"mxfp4", R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})"},
    {"gptq", R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false})"},
    {"awq", R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"})"},
    {"auto-round", R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"})"},
    {"compressed int4",
     R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}})"},
    {"compressed fp8",
     R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})"},
    {"compressed nvfp4",
     R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets":
         ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}})"},
    {"modelopt fp8", R"({"quant_method": "modelopt", "quant_algo": "FP8"})"},
    {"modelopt nvfp4", R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16})"},
    {"quark", R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}})"},
    {"bitsandbytes", R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})"},
    {"torchao", R"({"quant_method": "torchao", "quant_type": "int8_weight_only"})"},
    {"a method of tomorrow", R"({"quant_method": "tomorrow", "bits": 3})"},
};

/// A whole model of one layer, all of whose weights are zeros.
std::string weights_file(Dtype dtype) {
  std::vector<std::pair<std::string, Shape>> tensors = {
      {"model.embed_tokens.weight", {kWords, kHidden}},
      {"model.norm.weight", {kHidden}},
      {"lm_head.weight", {kWords, kHidden}},
  };
  const std::vector<std::pair<std::string, Shape>> layer = {{"input_layernorm", {kHidden}},
                                                            {"post_attention_layernorm", {kHidden}},
                                                            {"self_attn.q_proj", {kHeads * kHead, kHidden}},
                                                            {"self_attn.k_proj", {kHeads * kHead, kHidden}},
                                                            {"self_attn.v_proj", {kHeads * kHead, kHidden}},
                                                            {"self_attn.o_proj", {kHidden, kHeads * kHead}},
                                                            {"self_attn.q_norm", {kHead}},
                                                            {"self_attn.k_norm", {kHead}},
                                                            {"mlp.gate", {2, kHidden}},
                                                            {"mlp.experts.0.gate_proj", {kWidth, kHidden}},
                                                            {"mlp.experts.0.up_proj", {kWidth, kHidden}},
                                                            {"mlp.experts.0.down_proj", {kHidden, kWidth}},
                                                            {"mlp.experts.1.gate_proj", {kWidth, kHidden}},
                                                            {"mlp.experts.1.up_proj", {kWidth, kHidden}},
                                                            {"mlp.experts.1.down_proj", {kHidden, kWidth}}};
  for (const auto& [name, shape] : layer) tensors.emplace_back("model.layers.0." + name + ".weight", shape);
  std::string header = "{";
  i64 end = 0;
  for (const auto& [name, shape] : tensors) {
    const i64 begin = end;
    end += support::tensor_bytes(dtype, shape);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", begin > 0 ? "," : "", name,
                          dtype_name(dtype), fmt::join(shape, ","), begin, end);
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return text + header + std::string(static_cast<std::size_t>(end), '\0');
}

enum class Place { Nowhere, Root, Compression, TextConfig, File };

std::string word_of(Dtype dtype) {
  return dtype == Dtype::BF16 ? "bfloat16" : dtype == Dtype::F16 ? "float16" : "float32";
}

std::string config_file(Place place, const std::string& quantization, const std::string& dtype) {
  const std::string object = place == Place::Root || place == Place::TextConfig
                                 ? R"(, "quantization_config": )" + quantization
                             : place == Place::Compression ? R"(, "compression_config": )" + quantization
                                                           : "";
  const std::string fields = fmt::format(
      R"("architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "{}",
         "num_hidden_layers": 1, "hidden_size": {}, "vocab_size": {}, "num_attention_heads": {}, "head_dim": {},
         "num_key_value_heads": {}, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": {},
         "intermediate_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
         "norm_topk_prob": true, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
         "mlp_only_layers": [], "decoder_sparse_step": 1)",
      place == Place::Nowhere || place == Place::File ? dtype : "float8_e4m3fn", kHidden, kWords, kHeads, kHead, kHeads,
      kWidth);
  return "{" + fields +
         (place == Place::TextConfig ? R"(, "text_config": {"model_type": "qwen3_moe")" + object + "}" : object) + "}";
}

class StaleQuantization : public testing::Test {
 protected:
  StaleQuantization() : scope_(memory_) {}

  void put(Dtype dtype, Place place, const std::string& quantization) {
    for (const char* path : {"/src", "/out", "/back"}) (void)remove_own(path, Own::MadeHere);
    memory_.put("/src/model.safetensors", weights_file(dtype));
    memory_.put("/src/config.json", config_file(place, quantization, word_of(dtype)));
    if (place == Place::File) memory_.put("/src/quantize_config.json", quantization);
  }

  /// Returns why not, or nothing.
  static std::string run(const std::string& from, const std::string& to, const ConvertOptions& options) {
    try {
      (void)convert(from, to, options, silent());
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  static RunOptions silent() {
    RunOptions run;
    run.jobs = 1;
    return run;
  }

  void expect_clean(const std::string& out, Dtype dtype) {
    const std::string config = memory_.get(out + "/config.json").value_or("");
    EXPECT_NE(config.find("qwen3_moe"), config.npos) << config;
    for (const char* word : {"quantization_config", "compression_config", "quant_method"})
      EXPECT_EQ(config.find(word), config.npos) << config;
    EXPECT_NE(config.find("\"" + word_of(dtype) + "\""), config.npos) << config;
    EXPECT_EQ(config.find("float8"), config.npos) << config;
    for (const char* file : {"quantize_config.json", "hf_quant_config.json"})
      EXPECT_FALSE(memory_.get(out + "/" + file)) << file;
    EXPECT_TRUE(inspect(out).problems.empty()) << inspect(out).problems.front();
  }

  MemorySystem memory_;
  SystemCallsScope scope_;
};

TEST_F(StaleQuantization, GoesOutWithNoCommandAndIsAProblem) {
  int cases = 0;
  for (const auto& [name, quantization] : kConfigs)
    for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
      for (const Place place : {Place::Root, Place::Compression, Place::TextConfig, Place::File}) {
        SCOPED_TRACE(fmt::format("{} beside {} in place {}", name, dtype_name(dtype), static_cast<int>(place)));
        put(dtype, place, quantization);
        const Inspection found = inspect("/src");
        ++cases;
        EXPECT_FALSE(found.problems.empty());
        EXPECT_TRUE(found.loads_in.loaders.empty());
        if (dtype != Dtype::BF16 && place != Place::Root) continue;
        // A copy, a decoder asked for, and through a trainer with the configuration named again.
        ConvertOptions options;
        options.target = "hf";
        options.force = true;
        EXPECT_EQ(run("/src", "/out", options), "");
        ++cases;
        if (memory_.get("/out/config.json")) expect_clean("/out", dtype);
        (void)remove_own("/out", Own::MadeHere);
        if (dtype != Dtype::BF16) continue;
        if (place == Place::Root) {
          options.from.decode = Dtype::BF16;
          EXPECT_EQ(run("/src", "/out", options), "");
          ++cases;
          if (memory_.get("/out/config.json")) expect_clean("/out", dtype);
          (void)remove_own("/out", Own::MadeHere);
        }
        if (place != Place::Root && place != Place::File) continue;
        ConvertOptions to_trainer, from_trainer;
        to_trainer.target = "megatron";
        EXPECT_EQ(run("/src", "/out", to_trainer), "");
        from_trainer.target = "hf";
        from_trainer.from.config_file = "/src/config.json";
        EXPECT_EQ(run("/out", "/back", from_trainer), "");
        ++cases;
        if (memory_.get("/back/config.json")) expect_clean("/back", dtype);
        if (HasFailure()) return;
      }
  EXPECT_GT(cases, 300);
}

/// The same models without it are sound.
TEST_F(StaleQuantization, SoundModelsStayAsTheyAre) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
    put(dtype, Place::Nowhere, "");
    const Inspection found = inspect("/src");
    EXPECT_TRUE(found.problems.empty()) << found.problems.front();
    EXPECT_FALSE(found.loads_in.loaders.empty()) << found.loads_in.why_none;
  }
}

}  // namespace
}  // namespace glu_ckpt
