/// GPTQ's two versions, over every zero point and whichever of its two files says what: what is decoded is what this
/// arithmetic says, or the refusal names the file.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "quant/check_codes.hpp"
#include "quant/decoded_source.hpp"
#include "quant/quantization_files.hpp"
#include "support/quantized_tensors.hpp"

namespace glu_ckpt::support {
namespace {

using Shape = std::vector<i64>;

constexpr i64 kIn = 64, kOut = 16, kGroup = 32, kGroups = kIn / kGroup, kPerWord = 8;

/// Codes, zero points and scales of one linear layer, and the group of each input.
struct Layer {
  std::array<std::array<int, kIn>, kOut> codes{};
  std::array<std::array<int, kOut>, kGroups> zeros{};
  std::array<std::array<float, kOut>, kGroups> scales{};
  std::array<int, kIn> groups{};
};

enum class Zeros { Middle, None, Least, Most, Borrow, Any };
constexpr Zeros kZeros[] = {Zeros::Middle, Zeros::None, Zeros::Least, Zeros::Most, Zeros::Borrow, Zeros::Any};

int zero_point(Zeros zeros, i64 column, std::mt19937& random) {
  switch (zeros) {
    case Zeros::Middle: return 8;
    case Zeros::None: return 0;
    case Zeros::Least: return 1;
    case Zeros::Most: return 15;
    // Each 0 takes from its neighbour, and a row of them from the next.
    case Zeros::Borrow: return column % 3 == 1 ? 5 : 0;
    case Zeros::Any: return static_cast<int>(random() % 16);
  }
  return 8;
}

Layer make_layer(Zeros zeros, bool is_reordered, std::mt19937& random) {
  Layer layer;
  for (auto& row : layer.codes)
    for (int& code : row) code = static_cast<int>(random() % 16);
  // Powers of two, so that no order of rounding shows.
  for (auto& row : layer.scales)
    for (float& scale : row) scale = std::ldexp(1.0F, static_cast<int>(random() % 9) - 6);
  for (auto& row : layer.zeros)
    for (std::size_t column = 0; column < row.size(); ++column)
      row[column] = zero_point(zeros, static_cast<i64>(column), random);
  for (std::size_t input = 0; input < layer.groups.size(); ++input)
    layer.groups[input] = static_cast<int>(input) / static_cast<int>(kGroup);
  if (is_reordered) std::ranges::shuffle(layer.groups, random);
  return layer;
}

float weight_of(const Layer& layer, std::size_t out, std::size_t in) {
  const auto group = static_cast<std::size_t>(layer.groups[in]);
  return static_cast<float>(layer.codes[out][in] - layer.zeros[group][out]) * layer.scales[group][out];
}

template <typename Number>
MemoryTensor tensor_of(const std::string& name, Dtype dtype, Shape shape, const std::vector<Number>& numbers) {
  MemoryTensor tensor{name, dtype, std::move(shape), {}};
  tensor.bytes.resize(numbers.size() * sizeof(Number));
  std::memcpy(tensor.bytes.data(), numbers.data(), tensor.bytes.size());
  return tensor;
}

/// The first version writes each word of zero points less one in each of its eight places, as one number.
std::vector<MemoryTensor> stored_of(const Layer& layer, bool is_first) {
  std::vector<u32> codes(kIn / kPerWord * kOut), zeros(kGroups * kOut / kPerWord), groups;
  for (std::size_t out = 0; out < kOut; ++out)
    for (std::size_t in = 0; in < kIn; ++in)
      codes[in / kPerWord * kOut + out] |= static_cast<u32>(layer.codes[out][in]) << (4 * (in % kPerWord));
  for (std::size_t group = 0; group < kGroups; ++group)
    for (std::size_t out = 0; out < kOut; ++out)
      zeros[group * (kOut / kPerWord) + out / kPerWord] |= static_cast<u32>(layer.zeros[group][out])
                                                           << (4 * (out % kPerWord));
  if (is_first)
    for (u32& word : zeros) word -= 0x11111111U;
  std::vector<float> scales;
  for (const auto& row : layer.scales) scales.insert(scales.end(), row.begin(), row.end());
  for (const int group : layer.groups) groups.push_back(static_cast<u32>(group));
  return {tensor_of("l.0.up_proj.qweight", Dtype::I32, {kIn / kPerWord, kOut}, codes),
          tensor_of("l.0.up_proj.qzeros", Dtype::I32, {kGroups, kOut / kPerWord}, zeros),
          tensor_of("l.0.up_proj.scales", Dtype::F32, {kGroups, kOut}, scales),
          tensor_of("l.0.up_proj.g_idx", Dtype::I32, {kIn}, groups)};
}

/// Which of the two files has a field.
enum class Place { Neither, Config, File, Both };
constexpr Place kPlaces[] = {Place::Config, Place::File, Place::Both};

/// config.json's quantization_config and quantize_config.json, field by field.
struct Files {
  std::string config = R"("quant_method": "gptq")", file;

  void add(Place place, const std::string& name, const std::string& value) { add(place, name, value, value); }
  void add(Place place, const std::string& name, const std::string& in_config, const std::string& in_file) {
    if (place == Place::Config || place == Place::Both) config += ", \"" + name + "\": " + in_config;
    if (place == Place::File || place == Place::Both) file += (file.empty() ? "\"" : ", \"") + name + "\": " + in_file;
  }
};

struct Answer {
  std::string slug = "none";
  std::string text;
  std::vector<float> weights;
};

Answer decode(std::vector<MemoryTensor> tensors, const Files& files) {
  Answer answer;
  try {
    QuantConfig config = read_quant_config(R"({"quantization_config": {)" + files.config + "}}");
    config = with_quantization_file(std::move(config), "quantize_config.json", "{" + files.file + "}");
    auto source = std::make_unique<MemorySource>(std::move(tensors));
    Quantization found = find_quantized(source->inventory(), config, {});
    check_decodable(*source, found);
    const auto decoded = decode_source(std::move(source), std::move(found), Dtype::F32, DecodePath::Plain);
    EXPECT_EQ(decoded->inventory().tensors.size(), 1U);
    EXPECT_EQ(decoded->inventory().tensors.front().shape, (Shape{kOut, kIn}));
    answer.weights.resize(kIn * kOut);
    decoded->read(0, 0, std::as_writable_bytes(std::span(answer.weights)));
  } catch (const Error& error) {
    answer.slug = slug(error.code());
    answer.text = error.what();
  }
  return answer;
}

void expect_weights(const Answer& answer, const Layer& layer) {
  ASSERT_EQ(answer.slug, "none") << answer.text;
  for (std::size_t out = 0; out < kOut; ++out)
    for (std::size_t in = 0; in < kIn; ++in)
      ASSERT_EQ(answer.weights[out * kIn + in], weight_of(layer, out, in)) << "row " << out << ", column " << in;
}

std::string quoted(const std::string& word) { return "\"" + word + "\""; }

TEST(Gptq, IsWhatItsFilesSay) {
  std::mt19937 random(48);
  int cases = 0;
  for (const Zeros zeros : kZeros)
    for (const bool is_first : {true, false})
      for (const bool is_reordered : {true, false})
        for (const std::string sym : {"true", "false", ""})
          for (const Place of_version : {Place::Neither, Place::Config, Place::File, Place::Both})
            for (const Place of_others : kPlaces) {
              // What says nothing is of the first version.
              if (of_version == Place::Neither && !is_first) continue;
              Files files;
              files.add(of_others, "bits", "4");
              files.add(of_others, "group_size", "32");
              files.add(of_others, "desc_act", is_reordered ? "true" : "false");
              files.add(of_version, "checkpoint_format", quoted(is_first ? "gptq" : "gptq_v2"));
              if (!sym.empty()) files.add(of_others, "sym", sym);
              SCOPED_TRACE(files.config + " | " + files.file);
              const Layer layer = make_layer(zeros, is_reordered, random);
              const Answer answer = decode(stored_of(layer, is_first), files);
              ++cases;
              if (sym == "true" && zeros != Zeros::Middle)
                EXPECT_EQ(answer.slug, "quant-config-contradicts") << answer.text;
              else
                expect_weights(answer, layer);
              if (testing::Test::HasFailure()) return;
            }
  EXPECT_GT(cases, 700);
}

TEST(Gptq, FilesThatContradictEachOtherAreRefused) {
  std::mt19937 random(7);
  const Layer layer = make_layer(Zeros::Middle, false, random);
  int cases = 0;
  const std::vector<std::array<std::string, 3>> fields = {{"bits", "4", "8"},
                                                          {"bits", "4", "3"},
                                                          {"group_size", "32", "64"},
                                                          {"group_size", "32", "-1"},
                                                          {"sym", "true", "false"},
                                                          {"checkpoint_format", quoted("gptq"), quoted("gptq_v2")},
                                                          {"quant_method", quoted("gptq"), quoted("awq")}};
  for (const auto& [name, right, wrong] : fields)
    for (const bool config_is_right : {true, false})
      for (const bool is_first : {true, false})
        for (const Place of_others : kPlaces) {
          Files files;
          if (name == "quant_method") files.config = R"("model": "m")";
          for (const auto& [other, value] : {std::pair<std::string, std::string>{"bits", "4"},
                                             {"group_size", "32"},
                                             {"checkpoint_format", quoted(is_first ? "gptq" : "gptq_v2")}})
            if (other != name) files.add(of_others, other, value);
          files.add(Place::Both, name, config_is_right ? right : wrong, config_is_right ? wrong : right);
          SCOPED_TRACE(files.config + " | " + files.file);
          const Answer answer = decode(stored_of(layer, is_first), files);
          ++cases;
          EXPECT_EQ(answer.slug, "quant-config-contradicts") << answer.text;
          EXPECT_NE(answer.text.find("quantize_config.json"), std::string::npos) << answer.text;
        }
  EXPECT_GE(cases, 80);
}

TEST(Gptq, OtherNumbersOfBitsAreRefused) {
  std::mt19937 random(8);
  const Layer layer = make_layer(Zeros::Middle, false, random);
  int cases = 0;
  for (const std::string bits : {"2", "3", "5", "8"})
    for (const Place place : kPlaces)
      for (const std::string version : {"gptq", "gptq_v2", "marlin"}) {
        Files files;
        files.add(place, "bits", bits);
        files.add(place, "checkpoint_format", quoted(version));
        const Answer answer = decode(stored_of(layer, true), files);
        ++cases;
        EXPECT_NE(answer.slug, "none") << bits << " bits, " << version;
      }
  EXPECT_EQ(cases, 36);
}

}  // namespace
}  // namespace glu_ckpt::support
