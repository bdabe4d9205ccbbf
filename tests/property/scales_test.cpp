/// Codes and all that belongs to them, lost, cut, turned, renamed or unknown: a quantized model is accepted where
/// exactly one reading covers every row and column, and refused by the name of a tensor of the module at fault where
/// none does.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "layout/bare_codes.hpp"
#include "support/quantized_tensors.hpp"

namespace glu_ckpt::support {
namespace {

using Shape = std::vector<i64>;

struct Answer {
  bool refused = false;
  std::string tensor;
  std::string text;
  Quantization found;
};

Answer judge(const std::vector<MemoryTensor>& tensors, const QuantConfig& config, const WeightAxes& axes = {}) {
  Answer answer;
  try {
    answer.found = find_quantized(make_inventory(tensors), config, axes);
    if (const auto& why = answer.found.undecodable) {
      answer.refused = true;
      answer.tensor = why->tensor;
      answer.text = why->why;
    }
  } catch (const Error& error) {
    answer.refused = true;
    answer.tensor = error.tensor();
    answer.text = error.what();
  }
  return answer;
}

QuantConfig config_of(const std::string& object) {
  return read_quant_config(R"({"quantization_config": )" + object + "}");
}

// ---- grids --------------------------------------------------------------------------------------

struct Companion {
  std::string word;
  Dtype dtype = Dtype::F32;
  Shape shape;
  std::function<bool(const Shape&)> is_sound;
  /// Without it the codes are no numbers.
  bool is_needed = true;
};

struct Format {
  std::string name;
  std::string config;
  /// Modules are linear layers, or the experts of a layer in one parameter.
  bool is_stack = false;
  Axes axes = Axes::OutIn;
  std::string word;
  Dtype dtype = Dtype::F8_E4M3;
  Shape codes;
  std::vector<Companion> companions;
};

constexpr int kModules = 3;
constexpr i64 kExperts = 3;

i64 cells(i64 extent, i64 cell) { return (extent + cell - 1) / cell; }

/// Any of these shapes, behind the axis of experts where there is one.
std::function<bool(const Shape&)> any_of(std::vector<Shape> shapes, bool is_stack = false) {
  if (is_stack)
    for (Shape& shape : shapes) shape.insert(shape.begin(), kExperts);
  return [shapes](const Shape& shape) { return std::ranges::find(shapes, shape) != shapes.end(); };
}

/// One value a matrix, or one for all matrices.
std::function<bool(const Shape&)> one_value(i64 matrices) {
  return [matrices](const Shape& shape) {
    i64 values = 1;
    for (const i64 extent : shape) values *= extent;
    return values == 1 || (matrices > 1 && values == matrices);
  };
}

std::string compressed(const std::string& weights) {
  return R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {)" +
         weights + "}}}}";
}

/// The shapes of a grid of blocks; those of one block may lack their axes.
std::vector<Shape> block_shapes(i64 down, i64 across, bool has_modelopts) {
  std::vector<Shape> shapes{{down, across}};
  if (has_modelopts) shapes.push_back({down, 1, across, 1});
  if (down == 1 && across == 1) shapes.insert(shapes.end(), {{1}, {}});
  return shapes;
}

/// The shapes of groups of columns; one group may lack its axis.
std::vector<Shape> group_shapes(i64 rows, i64 groups) {
  return groups == 1 ? std::vector<Shape>{{rows, 1}, {rows}} : std::vector<Shape>{{rows, groups}};
}

Shape stacked(Shape shape) {
  shape.insert(shape.begin(), kExperts);
  return shape;
}

void add_fp8(std::vector<Format>& formats, i64 rows, i64 cols) {
  const Shape codes{rows, cols};
  for (const auto& [down, across] : {std::pair<i64, i64>{128, 128}, {64, 128}, {32, 96}}) {
    const Shape grid{cells(rows, down), cells(cols, across)};
    const std::string config = R"({"quant_method": "fp8", "weight_block_size": [)" + std::to_string(down) + ", " +
                               std::to_string(across) + "]}";
    const std::vector<Shape> shapes = block_shapes(grid[0], grid[1], true);
    formats.push_back({"FP8 in blocks",
                       config,
                       false,
                       Axes::OutIn,
                       ".weight",
                       Dtype::F8_E4M3,
                       codes,
                       {{".weight_scale_inv", Dtype::F32, grid, any_of(shapes)}}});
    formats.push_back({"stacked FP8 in blocks",
                       config,
                       true,
                       Axes::OutIn,
                       "",
                       Dtype::F8_E4M3,
                       stacked(codes),
                       {{"_scale_inv", Dtype::F32, stacked(grid), any_of(shapes, true)}}});
  }
  // What says nothing of blocks may have one scale for each row, or one for all.
  std::vector<Shape> any = block_shapes(cells(rows, 128), cells(cols, 128), true);
  any.insert(any.end(), {{rows, 1}, {rows}, {1, 1}, {1}, {}});
  formats.push_back({"FP8 without a configuration",
                     "{}",
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::F8_E5M2,
                     codes,
                     {{".weight_scale_inv", Dtype::F32, {cells(rows, 128), cells(cols, 128)}, any_of(any)}}});
  formats.push_back({"FP8 per channel",
                     compressed(R"("num_bits": 8, "type": "float", "strategy": "channel")"),
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::F8_E4M3,
                     codes,
                     {{".weight_scale", Dtype::BF16, {rows, 1}, any_of({{rows, 1}, {rows}})}}});
  formats.push_back(
      {"stacked FP8 per channel, turned",
       R"({"quant_method": "compressed-tensors"})",
       true,
       Axes::InOut,
       "",
       Dtype::F8_E4M3,
       stacked(codes),
       {{"_scale", Dtype::F32, {kExperts, 1, cols}, any_of({{1, cols}, {cols}, {cols, 1}, {1, 1}, {1}, {}}, true)}}});
  // The powers of two of MXFP8 are those of 32 columns, or, of TransformerEngine's second copy, of 32 rows.
  std::vector<Shape> mx = group_shapes(rows, cells(cols, 32));
  mx.push_back({cells(rows, 32), cols});
  if (rows <= 32) mx.insert(mx.end(), {{cols}, {cols, 1}});
  formats.push_back({"MXFP8",
                     R"({"quant_method": "mxfp8"})",
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::F8_E4M3,
                     codes,
                     {{".weight_scale_inv", Dtype::U8, {rows, cells(cols, 32)}, any_of(mx)}}});
  formats.push_back({"FP8 per tensor",
                     compressed(R"("num_bits": 8, "type": "float", "strategy": "tensor")"),
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::F8_E4M3,
                     codes,
                     {{".weight_scale", Dtype::F32, {1}, any_of({{1, 1}, {1}, {}})},
                      {".input_scale", Dtype::F32, {1}, one_value(1), false}}});
  formats.push_back({"INT8 per channel",
                     compressed(R"("num_bits": 8, "type": "int", "strategy": "channel")"),
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::I8,
                     codes,
                     {{".weight_scale", Dtype::F32, {rows, 1}, any_of({{rows, 1}, {rows}})}}});
}

void add_fp4(std::vector<Format>& formats, i64 rows, i64 cols) {
  const Shape bytes{rows, cols / 2}, of_16{rows, cols / 16}, of_32{rows, cols / 32};
  const std::vector<Shape> nv = group_shapes(rows, cols / 16), mx = group_shapes(rows, cols / 32);
  formats.push_back({"NVFP4 of compressed-tensors",
                     R"({"quant_method": "compressed-tensors"})",
                     false,
                     Axes::OutIn,
                     ".weight_packed",
                     Dtype::U8,
                     bytes,
                     {{".weight_scale", Dtype::F8_E4M3, of_16, any_of(nv)},
                      {".weight_global_scale", Dtype::F32, {1}, one_value(1)},
                      {".input_global_scale", Dtype::F32, {1}, one_value(1), false}}});
  formats.push_back({"NVFP4 of ModelOpt",
                     R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::U8,
                     bytes,
                     {{".weight_scale", Dtype::F8_E4M3, of_16, any_of(nv)},
                      {".weight_scale_2", Dtype::F32, {}, one_value(1)},
                      {".input_scale", Dtype::F32, {}, one_value(1), false}}});
  formats.push_back({"stacked NVFP4",
                     R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
                     true,
                     Axes::OutIn,
                     "",
                     Dtype::U8,
                     stacked(bytes),
                     {{"_scale", Dtype::F8_E4M3, stacked(of_16), any_of(nv, true)},
                      {"_scale_2", Dtype::F32, {kExperts}, one_value(kExperts)}}});
  formats.push_back({"MXFP4 of compressed-tensors",
                     R"({"quant_method": "compressed-tensors"})",
                     false,
                     Axes::OutIn,
                     ".weight_packed",
                     Dtype::U8,
                     bytes,
                     {{".weight_scale", Dtype::U8, of_32, any_of(mx)}}});
  formats.push_back({"MXFP4 of DeepSeek-V4",
                     "{}",
                     false,
                     Axes::OutIn,
                     ".weight",
                     Dtype::I8,
                     bytes,
                     {{".scale", Dtype::F8_E8M0, of_32, any_of(mx)}}});
  formats.push_back({"MXFP4 of gpt-oss",
                     R"({"quant_method": "mxfp4"})",
                     true,
                     Axes::InOut,
                     "_blocks",
                     Dtype::U8,
                     {kExperts, rows, cols / 32, 16},
                     {{"_scales", Dtype::U8, stacked(of_32), any_of(mx, true)}}});
}

void add_int4(std::vector<Format>& formats, i64 rows, i64 cols) {
  const i64 groups = cells(cols, 32), words = cells(rows, 8);
  const std::string of_groups = R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 32)";
  const Companion scales{".weight_scale", Dtype::BF16, {rows, groups}, any_of(group_shapes(rows, groups))};
  formats.push_back(
      {"INT4", compressed(of_groups), false, Axes::OutIn, ".weight_packed", Dtype::I32, {rows, cols / 8}, {scales}});
  formats.push_back({"INT4 with zero points",
                     compressed(of_groups + R"(, "symmetric": false)"),
                     false,
                     Axes::OutIn,
                     ".weight_packed",
                     Dtype::I32,
                     {rows, cols / 8},
                     {scales, {".weight_zero_point", Dtype::I32, {words, groups}, any_of({{words, groups}})}}});
  formats.push_back({"INT4 per channel",
                     compressed(R"("num_bits": 4, "type": "int", "strategy": "channel")"),
                     false,
                     Axes::OutIn,
                     ".weight_packed",
                     Dtype::I32,
                     {rows, cols / 8},
                     {{".weight_scale", Dtype::BF16, {rows, 1}, any_of({{rows, 1}, {rows}})}}});
  formats.push_back({"stacked INT4",
                     compressed(of_groups),
                     true,
                     Axes::OutIn,
                     "_packed",
                     Dtype::I32,
                     {kExperts, rows, cols / 8},
                     {{"_scale", Dtype::BF16, {kExperts, rows, groups}, any_of(group_shapes(rows, groups), true)}}});
  if (rows % 8 != 0) return;
  const std::vector<Companion> of_words{
      {".scales", Dtype::F16, {groups, rows}, any_of({{groups, rows}})},
      {".qzeros", Dtype::I32, {groups, words}, any_of({{groups, words}})},
  };
  formats.push_back({"AWQ",
                     R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true})",
                     false,
                     Axes::OutIn,
                     ".qweight",
                     Dtype::I32,
                     {cols, words},
                     of_words});
  formats.push_back({"GPTQ",
                     R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false})",
                     false,
                     Axes::OutIn,
                     ".qweight",
                     Dtype::I32,
                     {cols / 8, rows},
                     of_words});
}

/// Two values of one matrix may be gate's and up's, and only its layout says so.
bool may_be_of_parts(const Companion& companion, const Shape& shape) {
  i64 values = 1;
  for (const i64 extent : companion.shape) values *= extent;
  return companion.shape.size() < 2 && values == 1 && !shape.empty() && shape.front() == 2;
}

struct Damage {
  std::string what;
  /// None where the tensor is lost.
  std::optional<Shape> shape;
  std::string renamed = {};
};

std::vector<Damage> damages_of(const Companion& companion) {
  const Shape& whole = companion.shape;
  std::vector<Damage> damages{{"whole", whole}, {"lost", std::nullopt}, {"renamed", whole, "_old"}};
  const auto add = [&](std::string what, Shape shape) { damages.push_back({std::move(what), std::move(shape)}); };
  for (std::size_t axis = 0; axis < whole.size(); ++axis) {
    const auto with = [&](i64 extent) {
      Shape shape = whole;
      shape[axis] = extent;
      return shape;
    };
    if (whole[axis] > 1) add("cut by one", with(whole[axis] - 1));
    if (whole[axis] > 2) add("cut to one", with(1));
    add("one more", with(whole[axis] + 1));
    Shape less = whole;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(axis));
    if (whole[axis] == 1) add("without an axis of one", less);
  }
  if (whole.size() > 1) {
    Shape turned = whole;
    std::swap(turned[turned.size() - 2], turned.back());
    add("transposed", turned);
    add("ModelOpt's axes", [&] {
      Shape shape(whole.begin(), whole.end() - 1);
      shape.insert(shape.end(), {1, whole.back(), 1});
      return shape;
    }());
  }
  Shape longer = whole;
  longer.push_back(1);
  add("an axis of one behind", longer);
  longer = whole;
  longer.insert(longer.begin(), 1);
  add("an axis of one in front", longer);
  longer.front() = 2;
  add("two of them", longer);
  return damages;
}

std::string module_name(const Format& format, int number) {
  return format.is_stack ? "model.layers." + std::to_string(number) + ".mlp.experts.down_proj"
                         : "model.layers.0.mlp.experts." + std::to_string(number) + ".down_proj";
}

/// `only`: the one module with the damage; all have it where it is negative.
std::vector<MemoryTensor> modules_of(const Format& format, const Companion* damaged, const Damage& damage, int only) {
  std::vector<MemoryTensor> tensors;
  for (int number = 0; number < kModules; ++number) {
    const std::string module = module_name(format, number);
    tensors.push_back({module + format.word, format.dtype, format.codes, {}});
    for (const Companion& companion : format.companions) {
      const bool is_whole = &companion != damaged || (only >= 0 && only != number);
      if (is_whole)
        tensors.push_back({module + companion.word, companion.dtype, companion.shape, {}});
      else if (damage.shape)
        tensors.push_back({module + companion.word + damage.renamed, companion.dtype, *damage.shape, {}});
    }
  }
  return tensors;
}

/// Returns whether the case was tried.
bool expect_right(const Format& format, const QuantConfig& config, const Companion& companion, const Damage& damage,
                  int only) {
  if (damage.shape && may_be_of_parts(companion, *damage.shape)) return false;
  // The number of values that say how to quantize inputs is no matter of the weights.
  if (!companion.is_needed && damage.shape && damage.renamed.empty() && damage.what != "whole") return false;
  const bool is_sound =
      damage.shape ? damage.renamed.empty() && companion.is_sound(*damage.shape) : !companion.is_needed;
  const std::vector<MemoryTensor> tensors = modules_of(format, &companion, damage, only);
  WeightAxes axes;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].dtype == format.dtype && tensors[i].shape == format.codes) axes.emplace(i, format.axes);
  const Answer answer = judge(tensors, config, axes);
  SCOPED_TRACE(format.name + " " + shape_text(format.codes) + ": " + companion.word + " " +
               (damage.shape ? shape_text(*damage.shape) : "") + " " + damage.what + ", module " +
               std::to_string(only) + ": " + answer.text);
  EXPECT_EQ(answer.refused, !is_sound);
  if (is_sound) {
    EXPECT_EQ(answer.found.tensors.size(), kModules);
    EXPECT_EQ(answer.found.tensors.size() + answer.found.companions.size(), tensors.size());
  } else {
    EXPECT_TRUE(answer.tensor.starts_with(module_name(format, std::max(only, 0)))) << answer.tensor;
  }
  return true;
}

TEST(Scales, AreAcceptedIfAndOnlyIfTheyCoverTheirWeight) {
  int tried = 0, turn = 0;
  for (const auto& [rows, cols] :
       {std::pair<i64, i64>{32, 64}, {64, 64}, {96, 160}, {160, 32}, {256, 128}, {130, 384}, {24, 32}}) {
    std::vector<Format> formats;
    add_fp8(formats, rows, cols);
    add_fp4(formats, rows, cols);
    add_int4(formats, rows, cols);
    for (const Format& format : formats) {
      const QuantConfig config = config_of(format.config);
      for (const Companion& companion : format.companions)
        for (const Damage& damage : damages_of(companion))
          for (const int only : {-1, turn++ % kModules})
            tried += expect_right(format, config, companion, damage, only) ? 1 : 0;
    }
  }
  EXPECT_GT(tried, 2000);
}

// ---- codes without scales -----------------------------------------------------------------------

/// Two layers of experts, two matrices of attention, and an embedding, none of which is quantized.
std::vector<MemoryTensor> plain_model(Record& record) {
  ModelSpec model;
  BlockSpec block;
  block.widths = widths(3, 8);
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  block.layer = 1;
  model.blocks.push_back(block);
  const Spelling spelling{"hf:deepseek_v3", Experts::Indexed, Experts::Indexed, split(), split()};
  record = record_of(model, spelling);
  std::vector<MemoryTensor> tensors = build(model, spelling);
  for (const std::string name : {"layers.0.self_attn.q_proj", "layers.1.self_attn.o_proj", "embed_tokens"})
    tensors.push_back({"model." + name + ".weight", Dtype::BF16, {8, 4}, {}});
  return tensors;
}

TEST(Scales, CodesWithoutThemAreFoundWhereverTheyAre) {
  Record record;
  const std::vector<MemoryTensor> plain = plain_model(record);
  int tried = 0;
  const std::vector<std::string> places = {"",       ".experts.",    "layers.0.mlp", "layers.1.mlp", "q_proj",
                                           "o_proj", "embed_tokens", ".self_attn.",  "no such name"};
  const QuantConfig configs[] = {{},
                                 config_of(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"),
                                 config_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})")};
  for (const Dtype dtype :
       {Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8, Dtype::U8, Dtype::I32, Dtype::F4, Dtype::F16, Dtype::F32})
    for (const std::string& place : places)
      for (const bool has_scales : {false, true}) {
        std::vector<MemoryTensor> tensors = plain;
        std::vector<std::size_t> bare;
        for (std::size_t i = 0; i < plain.size(); ++i) {
          if (tensors[i].name.find(place) == std::string::npos) continue;
          tensors[i].dtype = dtype;
          const bool is_scaled = has_scales && tensors[i].name.find("self_attn") != std::string::npos;
          if (is_scaled)
            tensors.push_back({tensors[i].name + "_scale", Dtype::F32, {tensors[i].shape[0], 1}, {}});
          else if (dtype != Dtype::F16 && dtype != Dtype::F32)
            bare.push_back(i);
        }
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " in '" + place + "'" + (has_scales ? ", scaled" : ""));
        const Inventory inventory = make_inventory(tensors);
        const Recognition recognition = recognize(inventory, {}, record, {});
        EXPECT_EQ(bare_codes(inventory, recognition), bare);
        EXPECT_EQ(bare_code_texts(inventory, recognition).size(), bare.empty() ? 0U : 1U);
        for (const QuantConfig& config : configs) {
          const Answer answer = judge(tensors, config, weight_axes(recognition.blocks));
          ++tried;
          for (const QuantizedTensor& weight : answer.found.tensors)
            EXPECT_EQ(std::ranges::count(bare, weight.weight), 0) << weight.name << " is decoded without scales";
          const bool is_float8 = dtype == Dtype::F8_E4M3 || dtype == Dtype::F8_E5M2;
          EXPECT_TRUE(answer.refused || !is_float8 || bare.empty());
        }
      }
  EXPECT_GT(tried, 400);
}

// ---- what programs do beside the weights --------------------------------------------------------

/// Two modules that are quantized, beside one that is not.
std::vector<MemoryTensor> two_modules() {
  return {{"l.0.up_proj.weight", Dtype::F8_E4M3, {32, 64}, {}},
          {"l.0.up_proj.weight_scale", Dtype::F32, {32, 1}, {}},
          {"l.1.up_proj.weight", Dtype::F8_E4M3, {32, 64}, {}},
          {"l.1.up_proj.weight_scale", Dtype::F32, {32, 1}, {}},
          {"l.0.router.weight", Dtype::BF16, {4, 64}, {}}};
}

TEST(Scales, UnknownPartsOfADecodedModuleAreRefused) {
  const std::vector<std::string> unknown = {
      "svdquant_lora_a", "svdquant_lora_b",    "smooth_scale",  "lora_A.weight",   "lora_B.default.weight",
      "rotation",        "channel_multiplier", "R4_input",      "hadamard.weight", "permutation",
      "outliers",        "codebook",           "weight_offset", "proj_down",       "x"};
  const std::vector<std::string> known = {"bias",    "input_scale",      "output_scale", "k_scale",
                                          "v_scale", "activation_scale", "_extra_state"};
  int tried = 0;
  const auto expect = [&](const std::string& module, const std::string& part, Dtype dtype, const Shape& shape,
                          bool refused) {
    std::vector<MemoryTensor> tensors = two_modules();
    tensors.push_back({module + "." + part, dtype, shape, {}});
    const Answer answer = judge(tensors, {});
    ++tried;
    EXPECT_EQ(answer.refused, refused) << tensors.back().name << ": " << answer.text;
    EXPECT_TRUE(!refused || answer.tensor == tensors.back().name) << answer.text;
  };
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32, Dtype::I32})
    for (const Shape& shape : {Shape{64}, Shape{32, 8}})
      for (const std::string module : {"l.0.up_proj", "l.1.up_proj", "l.0.router"}) {
        const bool is_quantized = module != "l.0.router";
        for (const std::string& part : unknown) expect(module, part, dtype, shape, is_quantized);
        if (is_quantized)
          for (const std::string& part : known) expect(module, part, dtype, shape, false);
      }
  EXPECT_GT(tried, 300);
}

TEST(Scales, ArithmeticOfTheConfigurationIsRefusedUnlessItIsInTheWeights) {
  int tried = 0;
  const auto expect = [&](const std::string& words, bool refused) {
    const std::string object = compressed(R"("num_bits": 8, "type": "float", "strategy": "channel")");
    const Answer answer = judge(two_modules(), config_of(object.substr(0, object.size() - 1) + ", " + words + "}"));
    ++tried;
    EXPECT_EQ(answer.refused, refused) << words << ": " << answer.text;
  };
  const std::vector<std::string> places = {"weight_input", "weight_output", "input", "output", "q_attn", "k_cache", ""};
  // Every set of places, as one transform or as one for each.
  for (unsigned set = 0; set < 1U << places.size(); ++set)
    for (const bool is_one : {true, false}) {
      std::string groups, apply;
      bool is_online = false;
      for (std::size_t i = 0; i < places.size(); ++i) {
        if ((set >> i & 1U) == 0) continue;
        is_online = is_online || !places[i].starts_with("weight_");
        const std::string one = R"({"targets": ["Linear"], "location": ")" + places[i] + R"(", "inverse": false})";
        apply += (apply.empty() ? "" : ", ") + one;
        groups += std::string(groups.empty() ? "" : ", ") + "\"r" + std::to_string(i) +
                  R"(": {"type": "hadamard", "apply": [)" + one + "]}";
      }
      if (is_one) groups = R"("r": {"type": "hadamard", "apply": [)" + apply + "]}";
      expect(R"("transform_config": {"config_groups": {)" + groups + "}}", is_online);
    }
  for (const std::string name : {"rotation", "rotation_config", "hadamard_config", "online_rotation", "Hadamard"}) {
    for (const std::string value : {"null", "false", "\"\"", "\"none\"", "0", "[]", "{}", R"({"size": null})"}) {
      expect("\"" + name + "\": " + value, false);
      expect(R"("quantization_args": {")" + name + "\": " + value + "}", false);
    }
    for (const std::string value : {"true", "\"random\"", "16", "[128]", R"({"size": 128})"}) {
      expect("\"" + name + "\": " + value, true);
      expect(R"("quantization_args": {")" + name + "\": " + value + "}", true);
    }
  }
  EXPECT_GT(tried, 300);
}

}  // namespace
}  // namespace glu_ckpt::support
