/// Quantized checkpoints (testdata/quantized) beside what the software that wrote each format decodes them to: every
/// tensor, bit for bit, by both roads, in any pieces, and in other layouts.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "glu_ckpt/convert.hpp"
#include "support/convert.hpp"
#include "support/stored_checkpoint.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;
using support::expect_error;
using support::MemoryTensor;
using support::read_tensors;

fs::path quantized_home(const std::string& kind) {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  return fs::path(path == nullptr ? "testdata" : path) / "quantized" / kind;
}

SourceAnswers decoding(Dtype to = Dtype::BF16, bool plainly = false) {
  SourceAnswers answers;
  answers.decode = to;
  answers.decode_plainly = plainly;
  return answers;
}

std::map<std::string, MemoryTensor> by_name(std::vector<MemoryTensor> tensors) {
  std::map<std::string, MemoryTensor> all;
  for (MemoryTensor& tensor : tensors) all.emplace(tensor.name, std::move(tensor));
  return all;
}

void expect_same_tensors(const std::vector<MemoryTensor>& found, const std::vector<MemoryTensor>& expected) {
  const auto all = by_name(found);
  EXPECT_EQ(all.size(), expected.size());
  for (const MemoryTensor& tensor : expected) {
    const auto at = all.find(tensor.name);
    ASSERT_NE(at, all.end()) << tensor.name;
    EXPECT_EQ(at->second.dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(at->second.shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(at->second.bytes == tensor.bytes) << tensor.name;
  }
}

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

class Quantized : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(home())) << home() << ": set GLU_CKPT_TESTDATA";
    std::string text = (fs::temp_directory_path() / "glu-ckpt-quant-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    temp_ = text;
  }
  void TearDown() override {
    if (!temp_.empty()) fs::remove_all(temp_);
  }

  fs::path home() const { return quantized_home(GetParam()); }
  std::vector<MemoryTensor> answer() const { return read_tensors(home() / "decoded.safetensors"); }

  fs::path temp_;
};

TEST_P(Quantized, DecodesToItsSoftwaresBits) {
  expect_same_tensors(read_tensors(*open_checkpoint(home(), decoding()).source), answer());
}

TEST_P(Quantized, DecodesToThemByTheOtherRoad) {
  expect_same_tensors(read_tensors(*open_checkpoint(home(), decoding(Dtype::BF16, true)).source), answer());
}

TEST_P(Quantized, AnyPiecesAreTheSameBytes) {
  const auto source = open_checkpoint(home(), decoding()).source;
  std::mt19937_64 random(17);
  for (std::size_t i = 0; i < source->inventory().tensors.size(); ++i) {
    const i64 bytes = source->inventory().tensors[i].bytes;
    std::vector<std::byte> whole(static_cast<std::size_t>(bytes));
    source->read(i, 0, whole);
    for (int round = 0; round < 6; ++round) {
      const i64 begin = static_cast<i64>(random() % static_cast<u64>(bytes));
      const i64 count = 1 + static_cast<i64>(random() % static_cast<u64>(bytes - begin));
      std::vector<std::byte> read(static_cast<std::size_t>(count));
      // Pieces of odd lengths, an empty one among them.
      const std::size_t first = random() % (read.size() + 1), second = first + random() % (read.size() - first + 1);
      const auto all = std::span(read);
      const std::span<std::byte> pieces[] = {all.first(first), all.subspan(first, 0),
                                             all.subspan(first, second - first), all.subspan(second)};
      source->read_scattered(i, begin, pieces);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), whole.begin() + begin))
          << source->inventory().tensors[i].name << " from " << begin;
    }
  }
}

/// Rounded to bf16, the fp32 values are the bf16 ones: of all formats that round once, and of those that round to fp32
/// first. AWQ rounds to fp16 before either.
TEST_P(Quantized, Fp32RoundsToBf16) {
  const auto wide = open_checkpoint(home(), decoding(Dtype::F32)).source;
  const auto expected = by_name(answer());
  for (const MemoryTensor& tensor : read_tensors(*wide)) {
    const MemoryTensor& narrow = expected.at(tensor.name);
    if (narrow.dtype == tensor.dtype) continue;
    ASSERT_EQ(tensor.dtype, Dtype::F32);
    for (std::size_t i = 0; i < narrow.bytes.size() / 2; ++i) {
      u32 value = 0;
      std::uint16_t kept = 0;
      std::memcpy(&value, tensor.bytes.data() + 4 * i, 4);
      std::memcpy(&kept, narrow.bytes.data() + 2 * i, 2);
      ASSERT_EQ((value + 0x7fff + (value >> 16 & 1)) >> 16, kept) << tensor.name << " " << i;
    }
  }
}

TEST_P(Quantized, ConvertsIntoAnotherProgramsModel) {
  ConvertOptions options;
  options.from = decoding();
  options.target = "megatron";
  const auto made = glu_ckpt::convert(home(), temp_ / "megatron", options);
  options = {};
  options.target = "hf";
  glu_ckpt::convert(temp_ / "megatron", temp_ / "back", options);
  expect_same_tensors(read_tensors(temp_ / "back"), answer());
  EXPECT_EQ(to_string(digest(temp_ / "back").digest), to_string(made.digest.value()));
  const std::string config = text_of(temp_ / "back" / "config.json");
  EXPECT_EQ(config.find("quantization"), std::string::npos);
  EXPECT_NE(config.find("model_type"), std::string::npos);
  VerifyOptions both;
  both.a = decoding();
  EXPECT_TRUE(verify(home(), temp_ / "megatron", both).equal);
  EXPECT_TRUE(open_source(temp_ / "megatron")->record().contains("decoded_from"));
}

/// Codes that were grouped, fused and interleaved decode to the same weights.
TEST_P(Quantized, GroupedCodesDecodeToTheSameWeights) {
  const std::string kind = GetParam();
  const std::string expected = to_string(digest(home(), decoding()).digest);
  for (const Glu& glu : {Glu{Glu::Kind::Contiguous}, Glu{Glu::Kind::Interleaved, 32}}) {
    ConvertOptions options;
    options.to.experts = Experts::Grouped;
    options.to.glu = glu;
    options.allow_foreign_order = true;
    options.force = true;
    glu_ckpt::convert(home(), temp_ / "grouped", options);
    for (const bool plainly : {false, true})
      EXPECT_EQ(to_string(digest(temp_ / "grouped", decoding(Dtype::BF16, plainly)).digest), expected)
          << to_string(glu);
    // Where gate and up have a scale each, only the order of their rows says which is whose.
    if (kind == "fp8_per_tensor") {
      const fs::path nameless = temp_ / "nameless";
      support::write_checkpoint(nameless, read_tensors(temp_ / "grouped"), text_of(home() / "config.json"));
      expect_error(
          ErrorCode::NotSupported, [&] { open_checkpoint(nameless, decoding()); }, "two values for each matrix");
      SourceAnswers answers = decoding();
      answers.glu = glu;
      EXPECT_EQ(to_string(digest(nameless, answers).digest), expected) << to_string(glu);
      fs::remove_all(nameless);
    }
    fs::remove_all(temp_ / "grouped");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Quantized,
                         testing::Values("fp8_block128", "fp8_block128_ue8m0", "fp8_per_tensor", "fp8_channel",
                                         "ct_int4_g32", "ct_int4_asym", "mxfp4_gpt_oss", "nvfp4_modelopt", "awq_int4",
                                         "gptq_int4"),
                         [](const auto& kind) { return kind.param; });

// ---- one second scale for gate and up -----------------------------------------------------------------

/// The NVFP4 fixture with second scales of gate and up that differ; expert 1's as it is.
class SecondScale : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string text = (fs::temp_directory_path() / "glu-ckpt-second-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    temp_ = text;
    tensors_ = read_tensors(quantized_home("nvfp4_modelopt"));
    for (MemoryTensor& tensor : tensors_)
      if (tensor.name.find(".experts.") != std::string::npos && tensor.name.ends_with("weight_scale_2"))
        put(tensor, second_scale(tensor.name));
  }
  void TearDown() override { fs::remove_all(temp_); }

  /// ModelOpt multiplies by the second scale, compressed-tensors divides.
  bool divides() const { return GetParam(); }

  float second_scale(const std::string& name) const {
    const int expert = name[name.find(".experts.") + 9] - '0';
    const int power = expert == 1 ? 0 : expert == 0 ? 3 : -2;
    const float gate = std::ldexp(1.37F, -9);
    const float scale = name.find("up_proj") != std::string::npos ? std::ldexp(gate, power) : gate;
    return divides() ? std::ldexp(1.37F, -12) / scale * 8192 : scale;
  }

  static void put(MemoryTensor& tensor, float value) { std::memcpy(tensor.bytes.data(), &value, sizeof value); }

  MemoryTensor& tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& of) { return of.name == name; });
  }

  fs::path write() {
    std::string config = text_of(quantized_home("nvfp4_modelopt") / "config.json");
    std::vector<MemoryTensor> tensors = tensors_;
    if (divides()) {
      for (std::size_t at = 0; (at = config.find("\"modelopt\"", at)) != std::string::npos;)
        config.replace(at, 10, "\"compressed-tensors\"");
      const std::map<std::string, std::string> words = {{".weight_scale_2", ".weight_global_scale"},
                                                        {".input_scale", ".input_global_scale"},
                                                        {".weight", ".weight_packed"}};
      for (MemoryTensor& of : tensors)
        for (const auto& [word, other] : words)
          if (of.name.ends_with(word) && (word != ".weight" || of.dtype == Dtype::U8)) {
            of.name.replace(of.name.size() - word.size(), word.size(), other);
            break;
          }
    }
    support::write_checkpoint(temp_ / "in", tensors, config);
    return temp_ / "in";
  }

  static ConvertOptions fused(const Glu& glu) {
    ConvertOptions options;
    options.to.experts = Experts::Grouped;
    options.to.glu = glu;
    options.allow_foreign_order = true;
    return options;
  }

  fs::path temp_;
  std::vector<MemoryTensor> tensors_;
};

/// Returns whether gate's and up's of each expert are equal, and there are some.
bool second_scales_are_equal(const fs::path& path) {
  std::size_t seen = 0;
  for (const MemoryTensor& tensor : read_tensors(path)) {
    const bool is_second =
        tensor.name.ends_with("gate_up_proj_scale_2") || tensor.name.ends_with("gate_up_proj_global_scale");
    if (!is_second) continue;
    for (std::size_t at = 0; at < tensor.bytes.size(); at += 8, ++seen)
      if (!std::equal(&tensor.bytes[at], &tensor.bytes[at] + 4, &tensor.bytes[at] + 4)) return false;
  }
  return seen > 0;
}

TEST_P(SecondScale, OfPowersOfTwoBecomeOneExactly) {
  const fs::path in = write();
  const std::string decoded = to_string(digest(in, decoding()).digest);
  for (const Glu& glu : {Glu{Glu::Kind::Contiguous}, Glu{Glu::Kind::Interleaved, 32}}) {
    glu_ckpt::convert(in, temp_ / "out", fused(glu));
    EXPECT_TRUE(second_scales_are_equal(temp_ / "out"));
    EXPECT_EQ(to_string(digest(temp_ / "out", decoding()).digest), decoded);
    EXPECT_EQ(open_source(temp_ / "out")->record().at("second_scales"), "one");
    EXPECT_TRUE(verify(in, temp_ / "out", {}).equal);
    EXPECT_TRUE(verify(temp_ / "out", in, {}).equal);
    ConvertOptions back;
    back.to.experts = Experts::Indexed;
    back.to.glu = Glu{Glu::Kind::Split};
    glu_ckpt::convert(temp_ / "out", temp_ / "back", back);
    EXPECT_EQ(to_string(digest(temp_ / "back", decoding()).digest), decoded);
    EXPECT_TRUE(verify(in, temp_ / "back", {}).equal);
    fs::remove_all(temp_ / "out");
    fs::remove_all(temp_ / "back");
  }
}

/// Where one expert's cannot, all stay, and everything comes back byte for byte.
TEST_P(SecondScale, OthersAreKept) {
  const std::string expert = "model.layers.1.mlp.experts.0.";
  // 2^-9 has nothing below it, and 448 nothing above: no shift but none.
  for (const char* const proj : {"gate_proj", "up_proj"}) {
    MemoryTensor& scales = tensor(expert + proj + ".weight_scale");
    scales.bytes[0] = std::byte{0x01};
    scales.bytes[1] = std::byte{0x7e};
  }
  const fs::path in = write();
  const auto planned = plan_conversion(in, temp_ / "out", fused(Glu{Glu::Kind::Contiguous}));
  EXPECT_NE(std::ranges::find_if(planned.plan.notes,
                                 [](const std::string& note) {
                                   return note.find("leaves every block scale exact") != std::string::npos &&
                                          note.find("layers.1.mlp.experts.0") != std::string::npos;
                                 }),
            planned.plan.notes.end());
  glu_ckpt::convert(in, temp_ / "out", fused(Glu{Glu::Kind::Contiguous}));
  EXPECT_FALSE(second_scales_are_equal(temp_ / "out"));
  EXPECT_FALSE(open_source(temp_ / "out")->record().contains("second_scales"));
  EXPECT_EQ(to_string(digest(temp_ / "out", decoding()).digest), to_string(digest(in, decoding()).digest));
  ConvertOptions back;
  back.to.experts = Experts::Indexed;
  back.to.glu = Glu{Glu::Kind::Split};
  glu_ckpt::convert(temp_ / "out", temp_ / "back", back);
  expect_same_tensors(read_tensors(temp_ / "back"), read_tensors(in));
}

INSTANTIATE_TEST_SUITE_P(Writers, SecondScale, testing::Values(false, true), [](const auto& divides) {
  return divides.param ? std::string("compressed_tensors") : std::string("modelopt");
});

// ---- planted faults ---------------------------------------------------------------------------------

/// A fault in a stored tensor of a checkpoint, which verify has to find beside the decoded original.
struct Fault {
  std::string kind;
  std::string what;
  /// The tensor that is changed, and the bytes.
  std::string tensor;
  void (*change)(std::vector<MemoryTensor>&, MemoryTensor&);
};

MemoryTensor& named(std::vector<MemoryTensor>& tensors, const std::string& name) {
  for (MemoryTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error(name);
}

constexpr const char* kExpert = "model.layers.1.mlp.experts.1.gate_proj.";

const std::vector<Fault> kFaults = {
    {"fp8_block128", "two scales exchanged", std::string(kExpert) + "weight_scale_inv",
     [](auto&, MemoryTensor& scales) { std::swap_ranges(&scales.bytes[0], &scales.bytes[4], &scales.bytes[4]); }},
    {"fp8_block128", "a grid of scales shifted by one", std::string(kExpert) + "weight_scale_inv",
     [](auto&, MemoryTensor& scales) {
       std::rotate(scales.bytes.begin(), scales.bytes.begin() + 4, scales.bytes.end());
     }},
    {"nvfp4_modelopt", "halves of bytes exchanged", std::string(kExpert) + "weight",
     [](auto&, MemoryTensor& codes) {
       for (std::byte& byte : codes.bytes) byte = (byte << 4) | (byte >> 4);
     }},
    {"nvfp4_modelopt", "another matrix's second scale", std::string(kExpert) + "weight_scale_2",
     [](std::vector<MemoryTensor>& all, MemoryTensor& scale) {
       scale.bytes = named(all, "model.layers.1.mlp.experts.1.down_proj.weight_scale_2").bytes;
     }},
    {"ct_int4_g32", "two groups' scales exchanged", std::string(kExpert) + "weight_scale",
     [](auto&, MemoryTensor& scales) { std::swap_ranges(&scales.bytes[0], &scales.bytes[2], &scales.bytes[2]); }},
    {"ct_int4_asym", "zeros of two groups exchanged", std::string(kExpert) + "weight_zero_point",
     [](auto&, MemoryTensor& zeros) { std::swap_ranges(&zeros.bytes[0], &zeros.bytes[4], &zeros.bytes[4]); }},
    {"gptq_int4", "columns in their own order", std::string(kExpert) + "g_idx",
     [](auto&, MemoryTensor& groups) {
       for (std::size_t i = 0; i < groups.bytes.size(); i += 4) groups.bytes[i] = std::byte(i / 4 / 32);
     }},
    {"awq_int4", "zeros shifted by one column", std::string(kExpert) + "qzeros",
     [](auto&, MemoryTensor& zeros) {
       for (std::byte& byte : zeros.bytes) byte = (byte << 4) | (byte >> 4);
     }},
};

TEST(QuantizedFaults, VerifyNamesThem) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.what);
    std::string text = (fs::temp_directory_path() / "glu-ckpt-fault-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    const fs::path temp = text;
    const fs::path home = quantized_home(fault.kind);
    std::vector<MemoryTensor> tensors = read_tensors(*open_source(home));
    fault.change(tensors, named(tensors, fault.tensor));
    support::write_checkpoint(temp / "spoiled", tensors, text_of(home / "config.json"));
    VerifyOptions options;
    options.a = options.b = decoding();
    const Verdict verdict = verify(home, temp / "spoiled", options);
    EXPECT_FALSE(verdict.equal);
    ASSERT_TRUE(verdict.first_difference.has_value());
    EXPECT_EQ(verdict.first_difference->layer, "1");
    EXPECT_EQ(verdict.first_difference->expert, 1);
    fs::remove_all(temp);
  }
}

TEST(QuantizedFaults, AScaleThatIsNoNumberIsRefused) {
  std::string text = (fs::temp_directory_path() / "glu-ckpt-fault-XXXXXX").string();
  ASSERT_NE(mkdtemp(text.data()), nullptr);
  const fs::path temp = text;
  std::vector<MemoryTensor> tensors = read_tensors(*open_source(quantized_home("mxfp4_gpt_oss")));
  named(tensors, "model.layers.1.mlp.experts.down_proj_scales").bytes[7] = std::byte{255};
  support::write_checkpoint(temp / "spoiled", tensors, text_of(quantized_home("mxfp4_gpt_oss") / "config.json"));
  ConvertOptions options;
  options.from = decoding();
  expect_error(
      ErrorCode::NotExact, [&] { glu_ckpt::convert(temp / "spoiled", temp / "out", options); }, "down_proj_scales");
  EXPECT_FALSE(fs::exists(temp / "out"));
  fs::remove_all(temp);
}

}  // namespace
}  // namespace glu_ckpt
