/// What two configurations of one set of weights let a model compute differently.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "glu_ckpt/config_difference.hpp"

namespace glu_ckpt {
namespace {

std::string qwen3(const std::string& fields) {
  return fmt::format(R"({{"model_type": "qwen3_moe", "hidden_size": 64{}{}}})", fields.empty() ? "" : ", ", fields);
}

std::string compare(const std::string& a, const std::string& b,
                    QuantizationFields quantization = QuantizationFields::Skip) {
  return to_sentence(config_differences(qwen3(a), qwen3(b), quantization));
}

TEST(ConfigDifferences, NameFieldsWithBothValues) {
  EXPECT_EQ(compare(R"("rms_norm_eps": 1e-6, "rope_theta": 10000.0)", R"("rms_norm_eps": 1e-5, "rope_theta": 1000000)"),
            "rms_norm_eps is 1e-06 in A and 1e-05 in B; rope_theta is 10000 in A and 1000000 in B");
  EXPECT_EQ(compare(R"("hidden_act": "silu")", R"("hidden_act": "gelu")"), "hidden_act is 'silu' in A and 'gelu' in B");
  EXPECT_EQ(compare(R"("layer_types": ["a", "b"])", R"("layer_types": ["b", "a"])"),
            "layer_types is ['a', 'b'] in A and ['b', 'a'] in B");
  EXPECT_EQ(compare(R"("num_attention_heads": 4)", R"("num_attention_heads": 8)"),
            "num_attention_heads is 4 in A and 8 in B");
}

TEST(ConfigDifferences, TakeOneValueInTwoSpellingsForOne) {
  EXPECT_EQ(compare(R"("rope_theta": 10000.0)", R"("rope_parameters": {"rope_theta": 10000, "rope_type": "default"})"),
            "");
  EXPECT_EQ(compare(R"("rope_scaling": null)", R"("rope_scaling": {"type": "default"})"), "");
  EXPECT_EQ(compare(R"("attention_bias": null)", R"("attention_bias": false)"), "");
  EXPECT_EQ(config_differences(qwen3(R"("rms_norm_eps": 1e-5)"),
                               R"({"model_type": "x", "text_config": )" + qwen3(R"("rms_norm_eps": 0.00001)") + "}")
                .size(),
            0u);
}

TEST(ConfigDifferences, KnowWhatIsNotSaid) {
  EXPECT_EQ(compare("", R"("rms_norm_eps": 1e-5)"), "rms_norm_eps is 1e-06 in A and 1e-05 in B");
  EXPECT_EQ(compare("", R"("rms_norm_eps": 1e-6)"), "");
  // Nobody knows what a class does without a field that it does not know.
  EXPECT_EQ(compare("", R"("field_of_tomorrow": 3)"), "");
  EXPECT_EQ(compare(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})", ""),
            "rope_type is 'yarn' in A and 'default' in B");
  EXPECT_EQ(to_sentence(config_differences(R"({"model_type": "nobody", "rms_norm_eps": 1e-5})",
                                           R"({"model_type": "qwen3_moe"})")),
            "");
}

TEST(ConfigDifferences, LeaveOutWhatLetsAModelComputeTheSame) {
  EXPECT_EQ(
      compare(R"("torch_dtype": "bfloat16", "transformers_version": "4.51.0", "architectures": ["A"], "bos_token_id": 1,
                       "vocab_size": 100, "num_experts": 8, "initializer_range": 0.02, "use_cache": true,
                       "max_position_embeddings": 128, "_name_or_path": "a", "tie_word_embeddings": false)",
              R"("dtype": "float32", "torch_dtype": "float32", "transformers_version": "5.0.0", "architectures": ["B"],
                       "bos_token_id": 2, "vocab_size": 128, "num_experts": 4, "initializer_range": 0.01, "use_cache": false,
                       "max_position_embeddings": 256, "_name_or_path": "b", "tie_word_embeddings": true)"),
      "");
  const std::string dynamic = R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"})";
  const std::string fixed = R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "static"})";
  EXPECT_EQ(compare(dynamic, fixed), "");
  EXPECT_EQ(compare(dynamic, fixed, QuantizationFields::Compare),
            "quantization_config.activation_scheme is 'dynamic' in A and 'static' in B");
}

TEST(ConfigDifferences, ReadNoMoreThanThereIs) {
  for (const std::string text : {"", "[]", "{", "7", "\xff", "{\"rope_parameters\": 7, \"text_config\": []}"}) {
    EXPECT_TRUE(config_differences(text, qwen3(R"("x": 1)")).empty()) << text;
    EXPECT_TRUE(config_differences(qwen3(R"("x": 1)"), text).empty()) << text;
  }
  std::string many, others;
  for (int i = 0; i < 12; ++i) {
    many += fmt::format("{}\"x{}\": 1", i == 0 ? "" : ", ", i);
    others += fmt::format("{}\"x{}\": \"{}\"", i == 0 ? "" : ", ", i, std::string(200, 'y'));
  }
  const std::string text = compare(many, others);
  EXPECT_TRUE(text.ends_with("; and 4 fields more")) << text;
  EXPECT_LT(text.size(), 1200u);
}

}  // namespace
}  // namespace glu_ckpt
