/// Whole models (testdata/whole) into Megatron-Core's keys and back. The truth beside each was proved by logits and
/// made without this project, so a map that is wrong in both directions does not hide.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "core/json.hpp"
#include "glu_ckpt/check.hpp"
#include "support/whole_models.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using namespace support;

/// Cuts tensors that have all layers along their first axis: Megatron-Core stores layers so where all are alike.
Tensors per_layer(Tensors tensors) {
  constexpr std::string_view kStack = "decoder.layers.";
  Tensors result;
  for (MemoryTensor& tensor : tensors) {
    const std::string tail = tensor.name.starts_with(kStack) ? tensor.name.substr(kStack.size()) : "";
    if (tail.empty() || std::isdigit(static_cast<unsigned char>(tail[0])) != 0) {
      result.push_back(std::move(tensor));
      continue;
    }
    const auto bytes = static_cast<i64>(tensor.bytes.size()) / tensor.shape[0];
    for (i64 layer = 0; layer < tensor.shape[0]; ++layer) {
      const auto begin = tensor.bytes.begin() + layer * bytes;
      result.push_back({fmt::format("{}{}.{}", kStack, layer, tail),
                        tensor.dtype,
                        {tensor.shape.begin() + 1, tensor.shape.end()},
                        {begin, begin + bytes}});
    }
  }
  return result;
}

/// Layers that are alike as Megatron-Core saves them: one tensor for all, with a leading axis. Nothing where they are
/// not alike.
std::optional<Tensors> stacked(const Tensors& tensors) {
  const std::string prefix = "decoder.layers.";
  std::map<std::string, std::map<i64, const MemoryTensor*>> tails;
  Tensors result;
  i64 layers = 0;
  for (const MemoryTensor& tensor : tensors) {
    if (!tensor.name.starts_with(prefix)) {
      result.push_back(tensor);
      continue;
    }
    std::size_t digits = 0;
    const i64 layer = std::stoll(tensor.name.substr(prefix.size()), &digits);
    tails[tensor.name.substr(prefix.size() + digits + 1)].emplace(layer, &tensor);
    layers = std::max(layers, layer + 1);
  }
  for (const auto& [tail, ones] : tails) {
    const MemoryTensor& first = *ones.begin()->second;
    MemoryTensor all{prefix + tail, first.dtype, first.shape, {}};
    all.shape.insert(all.shape.begin(), layers);
    for (const auto& [layer, one] : ones) {
      if (one->shape != first.shape || one->dtype != first.dtype) return std::nullopt;
      all.bytes.insert(all.bytes.end(), one->bytes.begin(), one->bytes.end());
    }
    if (std::ssize(ones) != layers) return std::nullopt;
    result.push_back(std::move(all));
  }
  return result;
}

/// The proof of a model: its entry in testdata/whole.json.
class Case {
 public:
  explicit Case(const fs::path& home)
      : text_(read_text(home.parent_path().parent_path() / "whole.json")),
        document_(text_, 8),
        proof_(document_.root().find(home.filename().string()).value()) {}

  std::vector<std::string> list(std::string_view name) const {
    std::vector<std::string> texts;
    if (const auto found = proof_.find(name))
      for (const JsonValue item : found->items()) texts.emplace_back(item.get<std::string_view>().value());
    return texts;
  }

 private:
  std::string text_;
  JsonDocument document_;
  JsonValue proof_;
};

/// Arguments by name; a pattern of layers ("[0]*1+[1]*2") as the list that it makes, without what a shell takes away.
std::map<std::string, std::string> arguments_of(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream words(text);
  std::string name, word;
  while (words >> word) {
    if (word.starts_with("--")) {
      found[name = word];
      continue;
    }
    std::string& value = found[name];
    std::erase_if(word, [](char c) { return c == '\'' || c == '(' || c == ')'; });
    if (word[0] != '[' || word.find('*') == word.npos) {
      value = word;
      continue;
    }
    std::istringstream runs(word);
    for (std::string run; std::getline(runs, run, '+');)
      for (int i = std::stoi(run.substr(run.find('*') + 1)); i > 0; --i)
        value.append(value.empty() ? "" : ",").append(run, 1, 1);
    value.insert(0, "[").append("]");
  }
  return found;
}

std::vector<std::string> whole_families() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(home_of(""), none)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  if (names.empty()) names.emplace_back("none");
  return names;
}

class WholeFamily : public WholeModel, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    WholeModel::SetUp();
    ASSERT_TRUE(fs::exists(source())) << source() << ": set GLU_CKPT_TESTDATA";
  }

  fs::path home() const { return home_of(GetParam()); }
  fs::path source() const { return home() / "hf"; }
  std::vector<std::string> unknown() const { return Case(home()).list("unknown"); }

  /// Options that let travel what the case says that no map knows.
  ConvertOptions to(const std::string& target) const {
    ConvertOptions options = to_target(target);
    options.to.keep_unknown = !unknown().empty();
    return options;
  }

  /// The model under Megatron-Core's keys, each layer's its own.
  Tensors truth() const { return per_layer(read_tensors(home() / "truth.safetensors")); }

  /// The same, and the tensors beside the model.
  Tensors truth_and_unknown() const {
    Tensors tensors = truth();
    for (MemoryTensor& tensor : read_tensors(source()))
      if (const auto beside = unknown(); std::ranges::find(beside, tensor.name) != beside.end()) {
        tensor.name = std::string(kUnknownPrefix) + tensor.name;
        tensors.push_back(std::move(tensor));
      }
    return tensors;
  }

  /// Expects that neither plan nor convert takes this model, and that both say `text`.
  void expect_refusal(ErrorCode code, const Tensors& tensors, const std::string& config, const std::string& text) {
    write_checkpoint(temp_ / "faulty", tensors, config);
    const ConvertOptions options = to("megatron");
    expect_error(
        code, [&] { plan_conversion(temp_ / "faulty", temp_ / "out", options); }, text);
    expect_error(
        code, [&] { glu_ckpt::convert(temp_ / "faulty", temp_ / "out", options); }, text);
    EXPECT_FALSE(fs::exists(temp_ / "out"));
  }

  /// Converts with the options, expects what every output must have in common with its source, and leaves `away`.
  void there_and_back(const ConvertOptions& options) {
    const auto made = glu_ckpt::convert(source(), temp_ / "away", options);
    const std::string expected = digest_text(source());
    EXPECT_EQ(to_string(made.digest.value()), expected);
    EXPECT_EQ(digest_text(temp_ / "away"), expected);
    EXPECT_TRUE(verify(source(), temp_ / "away").equal);
    EXPECT_TRUE(verify(temp_ / "away", source()).equal);

    glu_ckpt::convert(temp_ / "away", temp_ / "back", to_target("hf"));
    EXPECT_TRUE(same_tensors(read_tensors(source()), read_tensors(temp_ / "back")));
    EXPECT_EQ(read_text(temp_ / "back" / "config.json"), read_text(source() / "config.json"));
    EXPECT_EQ(digest_text(temp_ / "back"), expected);
    EXPECT_TRUE(verify(temp_ / "away", temp_ / "back").equal);
  }
};

TEST_P(WholeFamily, MegatronIsTheTruthAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(there_and_back(to("megatron")));
  EXPECT_TRUE(same_tensors(truth_and_unknown(), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, InterleavedComesBack) {
  // 4 divides the widths of all experts here, shared ones included.
  ConvertOptions options = to("megatron");
  options.to.glu = interleaved(4);
  const LayoutAnswers layout = inspect(source()).recognition->layout;
  if (layout.glu.kind == Glu::Kind::None)
    return expect_error(
        ErrorCode::NotGated, [&] { glu_ckpt::convert(source(), temp_ / "away", options); }, "have no gate");
  if (layout.shared_glu) options.to.shared_glu = interleaved(4);
  ASSERT_NO_FATAL_FAILURE(there_and_back(options));
  EXPECT_FALSE(same_tensors(truth_and_unknown(), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, SafetensorsOfMegatronKeysComeBack) {
  ConvertOptions options = to("megatron");
  options.format = Format::Safetensors;
  ASSERT_NO_FATAL_FAILURE(there_and_back(options));
  EXPECT_TRUE(same_tensors(truth_and_unknown(), read_tensors(temp_ / "away")));
}

TEST_P(WholeFamily, LayersThatAreAlikeCanShareTensors) {
  ConvertOptions options = to("megatron");
  options.to.stack_layers = true;
  const Tensors numbered = truth_and_unknown();
  // A HybridModel's layers have keys of their own, and its last norm has another name.
  const bool is_hybrid =
      std::ranges::find(numbered, "decoder.final_norm.weight", &MemoryTensor::name) != numbered.end();
  const std::optional<Tensors> expected = is_hybrid ? std::nullopt : stacked(numbered);
  if (!expected) {
    expect_error(
        ErrorCode::NoSpelling, [&] { plan_conversion(source(), temp_ / "away", options); }, "--stack-layers");
    return expect_error(
        ErrorCode::NoSpelling, [&] { glu_ckpt::convert(source(), temp_ / "away", options); }, "--stack-layers");
  }
  ASSERT_NO_FATAL_FAILURE(there_and_back(options));
  EXPECT_TRUE(same_tensors(*expected, read_tensors(temp_ / "away")));
  // A list of layers with experts makes Megatron-Core ask for keys with numbers.
  EXPECT_EQ(read_text(temp_ / "away" / "megatron_args.txt").find("--moe-layer-freq"), std::string::npos);
}

TEST_P(WholeFamily, TruthBecomesTheModel) {
  // Keys of Megatron-Core that no conversion wrote: what they are stands in the config.json alone. Where all layers are
  // alike, it knows them by one key for all layers, too.
  std::vector<MemoryTensor> model = read_tensors(source());
  const std::vector<std::string> beside = unknown();
  const auto hf = open_source(source());
  const SourceAnswers answers = contiguous_answers(support::recognize_source(*hf).layout.glu.kind != Glu::Kind::None);
  std::erase_if(model, [&](const auto& tensor) { return std::ranges::find(beside, tensor.name) != beside.end(); });
  write_checkpoint(temp_ / "model", model, read_text(source() / "config.json"));
  for (const Tensors& tensors : {truth(), read_tensors(home() / "truth.safetensors")}) {
    fs::remove_all(temp_ / "truth");
    fs::remove_all(temp_ / "back");
    write_checkpoint(temp_ / "truth", tensors, read_text(source() / "config.json"));
    EXPECT_EQ(digest_text(temp_ / "truth", answers), digest_text(temp_ / "model"));
    ConvertOptions options = to_target("hf");
    options.from = answers;
    glu_ckpt::convert(temp_ / "truth", temp_ / "back", options);
    EXPECT_TRUE(verify(temp_ / "model", temp_ / "back").equal);
  }
}

TEST_P(WholeFamily, ExtraStatesAreThoseThatMegatronAsksFor) {
  glu_ckpt::convert(source(), temp_ / "away", to("megatron"));
  const auto away = open_source(temp_ / "away");
  std::vector<std::string> asked = Case(home()).list("extra_state"), written;
  for (const NamedObject& object : away->structure().objects)
    if (object.name.find("_extra_state") != std::string::npos) written.push_back(object.name);
  std::ranges::sort(written);
  EXPECT_FALSE(written.empty());
  // Attention itself has a state where its softmax learns.
  const bool learns = std::ranges::any_of(
      away->inventory().tensors, [](const TensorRef& tensor) { return tensor.name.ends_with(".softmax_offset"); });
  const auto is_of_attention = [](const std::string& name) {
    return name.find(".core_attention._extra_state") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::any_of(written, is_of_attention), learns);
  std::ranges::sort(asked);
  if (asked.empty()) return;
  EXPECT_EQ(written, asked);
}

TEST_P(WholeFamily, PlanSaysWhatConvertDoes) {
  const ConversionPlan planned = plan_conversion(source(), temp_ / "away", to("megatron"));
  EXPECT_TRUE(fs::is_empty(temp_));
  EXPECT_EQ(planned.plan.outputs.size(), truth_and_unknown().size());
  EXPECT_EQ(planned.plan.to.naming, "megatron-dist");
  i64 bytes = 0;
  for (const OutputTensor& output : planned.plan.outputs) bytes += output.bytes;
  EXPECT_EQ(planned.plan.bytes, bytes);
  const auto made = glu_ckpt::convert(source(), temp_ / "away", to("megatron"));
  EXPECT_EQ(made.plan.outputs.size(), planned.plan.outputs.size());
  EXPECT_EQ(made.plan.dropped, planned.plan.dropped);
  EXPECT_EQ(made.plan.notes, planned.plan.notes);
}

/// The arguments of the proof, from which Megatron-Core's own parser made the model, are in the file. What more is
/// there is what Megatron-Core takes anyway, or does not change what the model computes in fp32.
TEST_P(WholeFamily, ArgumentsAreThoseOfTheProof) {
  std::string text;
  for (const std::string& argument : Case(home()).list("args")) text += argument + "\n";
  // The proofs of the oldest models were made without any.
  if (text.empty()) return;
  glu_ckpt::convert(source(), temp_ / "away", to("megatron"));
  auto written = arguments_of(read_text(temp_ / "away" / "megatron_args.txt"));
  auto proved = arguments_of(text);
  const std::string& freq = written["--moe-layer-freq"];
  const std::map<std::string, std::string> usual{{"--bf16", ""},
                                                 {"--vocab-size", written["--padded-vocab-size"]},
                                                 {"--transformer-impl", "transformer_engine"},
                                                 {"--moe-router-dtype", "fp32"},
                                                 {"--moe-router-score-function", "softmax"},
                                                 {"--moe-router-topk-scaling-factor", "1.0"},
                                                 {"--moe-layer-freq", freq.find('0') == freq.npos ? freq : "mixed"}};
  for (auto* const arguments : {&written, &proved})
    for (const auto& [name, value] : usual) {
      const auto found = arguments->find(name);
      if (found != arguments->end() && found->second == value) arguments->erase(found);
    }
  // Nobody trains on the longest sequences from the first step on.
  if (std::string& length = proved["--seq-length"]; std::stoll(length) > 4096) length = "4096";
  for (const char* const dropout : {"--attention-dropout", "--hidden-dropout"}) proved[dropout] += ".0";
  EXPECT_EQ(written, proved);
}

// One fault in the model: no conversion may guess what was meant.

TEST_P(WholeFamily, OneCorrectionBiasMissingIsRefused) {
  Tensors tensors = read_tensors(source());
  const auto is_bias = [](const MemoryTensor& tensor) {
    return tensor.name.ends_with("expert_bias") || tensor.name.ends_with("e_score_correction_bias");
  };
  if (std::ranges::count_if(tensors, is_bias) < 2) return;
  const std::string name = std::ranges::find_if(tensors, is_bias)->name;
  std::erase_if(tensors, [&](const MemoryTensor& tensor) { return tensor.name == name; });
  expect_refusal(ErrorCode::ModelIncomplete, tensors, read_text(source() / "config.json"), "'" + name + "' is missing");
}

TEST_P(WholeFamily, OneExpertMissingIsRefused) {
  Tensors tensors = read_tensors(source());
  const auto is_one = [](const MemoryTensor& tensor) { return tensor.name.find(".experts.1.") != std::string::npos; };
  if (std::ranges::none_of(tensors, is_one)) return;
  tensors.erase(std::ranges::find_if(tensors, is_one));
  expect_refusal(ErrorCode::ExpertMissing, tensors, read_text(source() / "config.json"), "expert 1 of ");
}

TEST_P(WholeFamily, TiedBesideAnotherHeadIsRefused) {
  std::string config = read_text(source() / "config.json");
  const std::string untied = "\"tie_word_embeddings\": false";
  for (auto at = config.find(untied); at != config.npos; at = config.find(untied))
    config.replace(at, untied.size(), "\"tie_word_embeddings\": true");
  expect_refusal(ErrorCode::CopyDiffers, read_tensors(source()), config, "lm_head.weight");
}

/// Megatron-Core has no bias behind attention without biases in every linear layer.
TEST_F(WholeModel, ABiasBehindAttentionIsRefused) {
  const fs::path source = home_of("llama3") / "hf";
  Tensors tensors = read_tensors(source);
  std::string config = read_text(source / "config.json");
  const std::string without = "\"attention_bias\": false";
  config.replace(config.find(without), without.size(), "\"attention_bias\": true");
  for (const std::string layer : {"0", "1", "2"})
    for (const auto& [part, rows] : {std::pair("q", 48), std::pair("k", 16), std::pair("v", 16), std::pair("o", 48)}) {
      const std::string name = fmt::format("model.layers.{}.self_attn.{}_proj.bias", layer, part);
      tensors.push_back({name, Dtype::BF16, {rows}, std::vector<std::byte>(2 * static_cast<std::size_t>(rows))});
    }
  write_checkpoint(temp_ / "faulty", tensors, config);
  expect_error(
      ErrorCode::NoMap, [&] { glu_ckpt::convert(temp_ / "faulty", temp_ / "out", to_target("megatron")); },
      "self_attn.o_proj.bias");
  // The class of transformers makes all four where attention_bias is true.
  std::erase_if(tensors, [](const MemoryTensor& tensor) { return tensor.name.ends_with("o_proj.bias"); });
  write_checkpoint(temp_ / "three", tensors, config);
  expect_error(
      ErrorCode::ModelIncomplete, [&] { glu_ckpt::convert(temp_ / "three", temp_ / "out", to_target("megatron")); },
      "self_attn.o_proj.bias");
}

INSTANTIATE_TEST_SUITE_P(Families, WholeFamily, ::testing::ValuesIn(whole_families()),
                         [](const auto& param) { return param.param; });

/// q, k and v of Ling are one tensor, of which the rows of v are taken away.
TEST_F(WholeModel, KeyHeadsMissingInOneTensorOfAllAreRefused) {
  const fs::path source = home_of("bailing_moe_v2") / "hf";
  Tensors tensors = read_tensors(source);
  MemoryTensor& qkv = find(tensors, "model.layers.1.attention.query_key_value.weight");
  const i64 row = std::ssize(qkv.bytes) / qkv.shape[0];
  qkv.shape[0] = (6 + 2) * 16;
  qkv.bytes.resize(static_cast<std::size_t>(qkv.shape[0] * row));
  write_checkpoint(temp_ / "faulty", tensors, read_text(source / "config.json"));
  const auto convert_it = [&] { glu_ckpt::convert(temp_ / "faulty", temp_ / "out", to_target("megatron")); };
  expect_error(ErrorCode::ModelShape, convert_it, "model.layers.1.attention.query_key_value.weight");
  expect_error(ErrorCode::ModelShape, convert_it, "num_key_value_heads x head_dim");
}

// ---- as a trainer saves it ----------------------------------------------------------------------

class StackedModel : public WholeModel, public ::testing::WithParamInterface<std::string> {};

TEST_P(StackedModel, ComesBackWithoutThePadding) {
  const fs::path source = home_of(GetParam()) / "hf";
  Tensors tensors = stacked(read_tensors(home_of(GetParam()) / "truth.safetensors")).value();
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight"}) {
    MemoryTensor& tensor = find(tensors, name);
    tensor.bytes.resize(tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) * 128, std::byte{0x5a});
    tensor.shape[0] = 128;
  }
  write_checkpoint(temp_ / "trained", tensors, read_text(source / "config.json"));
  ConvertOptions options = to_target("hf");
  options.from = contiguous_answers();
  const auto made = glu_ckpt::convert(temp_ / "trained", temp_ / "back", options);
  EXPECT_TRUE(same_tensors(read_tensors(source), read_tensors(temp_ / "back")));
  const auto about_padding = [](const std::string& note) { return note.find("padding") != note.npos; };
  EXPECT_EQ(std::ranges::count_if(made.plan.notes, about_padding), 2);
  EXPECT_EQ(digest_text(temp_ / "trained", contiguous_answers()), digest_text(source));

  // Padding is no part of the model, and still no file with other padding is the same file.
  for (const std::string name : {"embedding.word_embeddings.weight", "output_layer.weight"})
    find(tensors, name).bytes.back() = std::byte{0x5b};
  write_checkpoint(temp_ / "other", tensors, read_text(source / "config.json"));
  VerifyOptions answers;
  answers.a = answers.b = contiguous_answers();
  const Verdict same = verify(temp_ / "trained", temp_ / "trained", answers);
  EXPECT_TRUE(same.same_layout);
  EXPECT_TRUE(same.differing_padding.empty());
  const Verdict other = verify(temp_ / "trained", temp_ / "other", answers);
  EXPECT_TRUE(other.equal);
  EXPECT_FALSE(other.same_layout);
  EXPECT_EQ(std::set(other.differing_padding.begin(), other.differing_padding.end()),
            (std::set<std::string>{"embedding.word_embeddings.weight", "output_layer.weight"}));
}

INSTANTIATE_TEST_SUITE_P(Families, StackedModel, ::testing::Values("gpt_oss", "qwen3_moe"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace glu_ckpt
