#include "format/model_config.hpp"

#include <gtest/gtest.h>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

ModelHints parse(std::string_view text) { return parse_config(text, "config.json"); }

bool is_refused(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::ConfigJson) << error.what();
    return true;
  }
  return false;
}

TEST(ModelConfig, ReadsTheThreeHints) {
  const auto hints = parse(R"({"model_type":"qwen3_moe","num_hidden_layers":48,"num_experts":128})");
  EXPECT_EQ(hints.model_type, "qwen3_moe");
  EXPECT_EQ(hints.num_hidden_layers, 48);
  EXPECT_EQ(hints.num_experts, 128);
}

TEST(ModelConfig, TakesTheFirstSpellingThatIsANumber) {
  EXPECT_EQ(parse(R"({"n_routed_experts":256,"moe_num_experts":1})").num_experts, 256);
  EXPECT_EQ(parse(R"({"num_local_experts":8,"n_routed_experts":256})").num_experts, 8);
  EXPECT_EQ(parse(R"({"moe_num_experts":[64,64],"num_local_experts":null})").num_experts, std::nullopt);
  EXPECT_EQ(parse(R"({"num_experts":[1],"moe_num_experts":64})").num_experts, 64);
  EXPECT_EQ(parse(R"({"num_experts":0})").num_experts, 0);
}

TEST(ModelConfig, ReadsTheActivation) {
  const auto hints = parse(R"({"hidden_act":"silu","swiglu_limit":7.5})");
  EXPECT_EQ(hints.hidden_act, "silu");
  EXPECT_EQ(hints.swiglu_limit, 7.5);
  EXPECT_EQ(hints.swiglu_other, "");
  EXPECT_EQ(parse(R"({"hidden_act":null,"mlp_hidden_act":"relu2"})").hidden_act, "relu2");
  EXPECT_EQ(parse(R"({"swiglu_limit":7})").swiglu_limit, 7);
  EXPECT_EQ(parse(R"({"swiglu_limit":null})").swiglu_other, "");
  EXPECT_EQ(parse(R"({"swiglu_limit":[7,null]})").swiglu_other, "swiglu_limit");
  EXPECT_EQ(parse(R"({"swiglu_limit":7,"swiglu_alpha":1.7})").swiglu_alpha, 1.7);
  EXPECT_EQ(parse(R"({"swiglu_limit":7,"swiglu_beta":1.7})").swiglu_other, "swiglu_beta");
  EXPECT_EQ(parse(R"({"swiglu_alpha":"1.7"})").swiglu_other, "swiglu_alpha");
  const auto nested = parse(R"({"hidden_act":"gelu","text_config":{"hidden_act":"silu","swiglu_limit":3}})");
  EXPECT_EQ(nested.hidden_act, "silu");
  EXPECT_EQ(nested.swiglu_limit, 3);
}

TEST(ModelConfig, LooksIntoTextConfig) {
  const auto hints = parse(R"({"model_type":"outer","text_config":{"model_type":"inner","num_hidden_layers":3,)"
                           R"("num_experts":4}})");
  EXPECT_EQ(hints.model_type, "outer");
  EXPECT_EQ(hints.num_hidden_layers, 3);
  EXPECT_EQ(hints.num_experts, 4);
  EXPECT_EQ(parse(R"({"text_config":{"model_type":"inner"}})").model_type, "inner");
  EXPECT_EQ(parse(R"({"num_hidden_layers":2,"text_config":{"num_hidden_layers":3}})").num_hidden_layers, 2);
}

TEST(ModelConfig, IgnoresMistypedValues) {
  const auto hints = parse(R"({"num_hidden_layers":"48","num_experts":1.5,"text_config":7})");
  EXPECT_EQ(hints.num_hidden_layers, std::nullopt);
  EXPECT_EQ(hints.num_experts, std::nullopt);
  EXPECT_EQ(parse(R"({"num_hidden_layers":0})").num_hidden_layers, std::nullopt);
  EXPECT_EQ(parse(R"({"num_hidden_layers":-1})").num_hidden_layers, std::nullopt);
  EXPECT_EQ(parse(R"({"num_hidden_layers":18446744073709551615})").num_hidden_layers, std::nullopt);
  EXPECT_EQ(parse(R"({"model_type":null})").model_type, "");
}

TEST(ModelConfig, TheLastOfTwoCountsAsInPython) {
  EXPECT_EQ(parse(R"({"num_experts":1,"num_experts":2})").num_experts, 2);
}

TEST(ModelConfig, ReadsNumbersThatOnlyPythonWrites) {
  const auto hints = parse(R"({"time_step_limit":[0.0, Infinity],"low":-Infinity,"x": NaN,"note":"NaN \" Infinity",)"
                           R"("max_length":1000000000000000019884624838656,"num_experts":8,"model_type":"m"})");
  EXPECT_EQ(hints.num_experts, 8);
  EXPECT_EQ(hints.model_type, "m");
}

TEST(ModelConfig, RefusesWhatIsNoConfig) {
  EXPECT_TRUE(is_refused(""));
  EXPECT_TRUE(is_refused("{"));
  EXPECT_TRUE(is_refused("[]"));
  EXPECT_TRUE(is_refused("{\"a\":Infinitely}"));
  EXPECT_TRUE(is_refused(R"({"model_type":["a"]})"));
  EXPECT_TRUE(is_refused("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"));
  EXPECT_TRUE(is_refused(std::string(static_cast<std::size_t>(kMaxConfigBytes) + 1, ' ')));
}

}  // namespace
}  // namespace glu_ckpt
