#include "adapters/read_factors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/adapter_names.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kPacked = ".experts", kInner = ".base_layer";
constexpr auto kPackedFiles = std::to_array<std::string_view>({"peft-0.18", "peft-0.19", "by-expert"});

/// The factors of a module, and DoRA's magnitudes.
struct Pair {
  std::optional<std::size_t> a;
  std::optional<std::size_t> b;
  std::optional<std::size_t> magnitudes;
  bool is_in_out = false;
};

/// "model.layers.3.mlp.experts" and the factors of its two parameters: PEFT nests a wrapper in another.
struct PackedModule {
  const Pair* outer = nullptr;
  const Pair* inner = nullptr;
};

/// One reading of packed factors: what they are for, and whether their axes are turned.
struct Reading {
  Role outer = Role::Down;
  Role inner = Role::GateUp;
  bool is_turned = false;
};

/// Splits the end off; false where it is another one.
bool cut_end(std::string& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.resize(text.size() - end.size());
  return true;
}

/// A part of experts without the number of one, as SGLang has factors that experts share: "experts.gate_up_proj".
struct StackedPart {
  std::string_view word;
  Role role;
};
constexpr auto kStackedParts = std::to_array<StackedPart>({{".experts.gate_up_proj", Role::GateUp},
                                                           {".experts.gate_proj", Role::Gate},
                                                           {".experts.up_proj", Role::Up},
                                                           {".experts.down_proj", Role::Down},
                                                           {".experts.w1", Role::Gate},
                                                           {".experts.w3", Role::Up},
                                                           {".experts.w2", Role::Down}});

const StackedPart* stacked_part(std::string_view module) {
  const auto found = std::ranges::find_if(kStackedParts, [&](const auto& part) { return module.ends_with(part.word); });
  return found == kStackedParts.end() ? nullptr : &*found;
}

bool is_stacked(std::string_view module) { return stacked_part(module) != nullptr; }

/// A parameter of AutoModel's experts.
struct InOutWord {
  std::string_view end;
  std::string_view part;
  bool is_a = false;
};
constexpr auto kInOutWords = std::to_array<InOutWord>({{".lora_gate_and_up_A", ".gate_up_proj", true},
                                                       {".lora_gate_and_up_B", ".gate_up_proj", false},
                                                       {".lora_down_A", ".down_proj", true},
                                                       {".lora_down_B", ".down_proj", false}});

class FactorReader {
 public:
  FactorReader(const Inventory& adapter, const AdapterConfig& config, const AdaptedModel& model, PackedFiles files)
      : factors_(adapter.tensors), config_(config), model_(model), files_(files) {}

  std::vector<AdaptedModule> read() {
    collect_pairs();
    std::map<std::string, PackedModule> packed;
    for (const auto& [module, pair] : pairs_) {
      std::string plain = module;
      const bool is_inner = cut_end(plain, kInner);
      if (plain.find(kMegatronExperts) != plain.npos)
        add_megatron(module, pair);
      else if (is_stacked(module) && !model_.is_linear(module))
        add_stacked(module, pair);
      else if (plain.ends_with(kPacked) && !model_.is_linear(module))
        (is_inner ? packed[plain].inner : packed[plain].outer) = &pair;
      else
        add_module(module, pair);
    }
    for (const auto& [module, found] : packed) add_packed(module, found);
    return std::move(found_);
  }

 private:
  /// Notes a part of a module. Programs spell one module in several ways, and a file may have two of them.
  void put(std::optional<std::size_t>& place, std::size_t tensor) const {
    if (place)
      fail(ErrorCode::RedundantKeys, {{}, factors_[tensor].name},
           "'{}' and '{}' of the adapter are one part of one module by two names; take one of them out",
           factors_[*place].name, factors_[tensor].name);
    place = tensor;
  }

  void collect_pairs() {
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      std::string name = factors_[i].name;
      if (name.starts_with(kAdaptedModel)) name.erase(0, kAdaptedModel.size());
      (void)cut_end(name, ".weight");
      (void)cut_end(name, ".default");
      if (cut_end(name, kMagnitudes)) {
        put(pairs_[name].magnitudes, i);
        continue;
      }
      if (take_in_out(name, i)) continue;
      const bool is_canonical = name.find(kMegatronGate) != name.npos || name.find(kMegatronUp) != name.npos;
      const bool is_a = cut_end(name, ".lora_A") || cut_end(name, is_canonical ? ".linear_in" : kMegatronIn);
      if (!is_a && !cut_end(name, ".lora_B") && !cut_end(name, is_canonical ? ".linear_out" : kMegatronOut)) {
        fail(ErrorCode::NotSupported, {{}, factors_[i].name},
             "'{}' of the adapter is neither lora_A nor lora_B of a linear layer; adapters are read here that add "
             "products of two factors, and nothing else",
             factors_[i].name);
      }
      const bool may_be_stacked =
          (name.find(kMegatronExperts) != name.npos || is_stacked(name)) && factors_[i].shape.size() == 3;
      if (!is_float(factors_[i].dtype) || (factors_[i].shape.size() != 2 && !may_be_stacked))
        fail(ErrorCode::NotSupported, {{}, factors_[i].name},
             "'{}' of the adapter is {} {}; factors are F32, BF16 or "
             "F16 of two axes",
             factors_[i].name, dtype_name(factors_[i].dtype), shape_text(factors_[i].shape));
      put(is_a ? pairs_[name].a : pairs_[name].b, i);
    }
    for (const auto& [module, pair] : pairs_) {
      if (pair.magnitudes && !config_.is_dora)
        fail(ErrorCode::NotSupported, {{}, factors_[*pair.magnitudes].name},
             "'{}' of the adapter is neither lora_A nor lora_B, but of DoRA, and adapter_config.json does not say "
             "use_dora",
             factors_[*pair.magnitudes].name);
      if (pair.a && pair.b) {
        check_magnitudes(module, pair);
        continue;
      }
      const TensorRef& found = factors_[pair.a ? *pair.a : pair.b ? *pair.b : *pair.magnitudes];
      fail(ErrorCode::PartMissing, {{}, found.name},
           "'{}' of the adapter is there, and {} not; is the download complete?", found.name,
           pair.a || pair.b ? "its other factor is" : "the factors beside it are");
    }
  }

  /// Takes a parameter of AutoModel's experts, "experts.lora_down_A", as a factor of "experts.down_proj".
  bool take_in_out(std::string name, std::size_t tensor) {
    const auto word = std::ranges::find_if(kInOutWords, [&](const InOutWord& each) { return cut_end(name, each.end); });
    if (word == kInOutWords.end()) return false;
    if (!is_float(factors_[tensor].dtype))
      fail(ErrorCode::NotSupported, {{}, factors_[tensor].name},
           "'{}' of the adapter is {}; factors are F32, BF16 or F16", factors_[tensor].name,
           dtype_name(factors_[tensor].dtype));
    Pair& pair = pairs_[fmt::format("{}{}", name, word->part)];
    pair.is_in_out = true;
    put(word->is_a ? pair.a : pair.b, tensor);
    return true;
  }

  void check_magnitudes(const std::string& module, const Pair& pair) const {
    if (!config_.is_dora) return;
    if (!pair.magnitudes)
      fail(ErrorCode::PartMissing, {{}, factors_[*pair.a].name},
           "adapter_config.json says use_dora, and '{}' has no lora_magnitude_vector; is the download complete?",
           module);
    const TensorRef& found = factors_[*pair.magnitudes];
    if (found.shape != std::vector<i64>{shape_b(pair)[0]})
      fail(ErrorCode::SizeMismatch, {{}, found.name}, "'{}' is {}, and its layer has {} outputs", found.name,
           shape_text(found.shape), shape_b(pair)[0]);
  }

  const std::vector<i64>& shape_a(const Pair& pair) const { return factors_[*pair.a].shape; }
  const std::vector<i64>& shape_b(const Pair& pair) const { return factors_[*pair.b].shape; }

  [[noreturn]] void fail_shapes(const Pair& pair, const std::string& why) const {
    fail(ErrorCode::SizeMismatch, {{}, factors_[*pair.a].name}, "'{}' is {} and '{}' {}: {}", factors_[*pair.a].name,
         shape_text(shape_a(pair)), factors_[*pair.b].name, shape_text(shape_b(pair)), why);
  }

  Factors factors_of(const Pair& pair) const {
    return {.a = *pair.a, .b = *pair.b, .dtype_a = factors_[*pair.a].dtype, .dtype_b = factors_[*pair.b].dtype};
  }

  void add_module(const std::string& module, const Pair& pair) {
    Factors factors = factors_of(pair);
    factors.rank = shape_a(pair)[0];
    factors.inputs = shape_a(pair)[1];
    factors.outputs = shape_b(pair)[0];
    factors.scale = config_.scale_of(module);
    if (factors.rank < 1 || factors.rank != shape_b(pair)[1] || factors.rank != config_.rank_of(module))
      fail_shapes(pair, fmt::format("adapter_config.json says rank {}", config_.rank_of(module)));
    found_.push_back({module, std::nullopt, factors, pair.magnitudes});
  }

  // ---- packed experts ------------------------------------------------------------------------------

  void add_packed(const std::string& module, const PackedModule& packed) {
    const Pair& named = packed.outer != nullptr ? *packed.outer : *packed.inner;
    const auto sizes = model_.sizes(module);
    if (!sizes)
      fail(ErrorCode::UnknownTensor, {{}, factors_[*named.a].name},
           "'{}' of the adapter is for packed experts of '{}', and the model has none there with gate and up; is the "
           "adapter for another model?",
           factors_[*named.a].name, module);
    if (config_.is_dora)
      fail(ErrorCode::NotSupported, {{}, factors_[*named.a].name},
           "adapter_config.json: use_dora is set, and '{}' is for packed experts, for which PEFT has no DoRA",
           factors_[*named.a].name);
    const Reading reading = reading_of(module, packed, *sizes);
    if (packed.outer != nullptr) add_packed(module, *packed.outer, reading.outer, reading.is_turned, *sizes);
    if (packed.inner != nullptr) add_packed(module, *packed.inner, reading.inner, reading.is_turned, *sizes);
  }

  bool fits(const Pair* pair, Role role, bool is_turned, const PackedSizes& sizes) const {
    if (pair == nullptr) return true;
    const i64 outputs = role == Role::Down ? sizes.hidden : 2 * sizes.intermediate;
    const i64 inputs = role == Role::Down ? sizes.intermediate : sizes.hidden;
    return shape_a(*pair)[1] == (is_turned ? outputs : inputs) && shape_b(*pair)[0] == (is_turned ? inputs : outputs);
  }

  /// Finds what the factors are for by their shapes; where these fit both parameters, by PEFT's order of wrappers.
  Reading reading_of(const std::string& module, const PackedModule& packed, const PackedSizes& sizes) const {
    const Pair& named = packed.outer != nullptr ? *packed.outer : *packed.inner;
    if (config_.is_by_unsloth && files_ == PackedFiles::Told)
      fail(ErrorCode::NotSupported, {{}, factors_[*named.b].name},
           "'{}' of the adapter: Unsloth wrote it, which had the columns of B by expert at first, and then by rank as "
           "PEFT has them; shapes do not tell. --from-lora by-expert or --from-lora peft-0.19 says it",
           factors_[*named.b].name);
    // Experts [in, out] were never turned.
    const bool may_be_turned = model_.axes == Axes::OutIn && files_ != PackedFiles::Peft019;
    const bool may_be_straight = model_.axes != Axes::OutIn || files_ != PackedFiles::Peft018;
    std::vector<Reading> all;
    for (const bool is_turned : {false, true})
      for (const Role outer : {Role::Down, Role::GateUp}) {
        const Reading reading{outer, outer == Role::Down ? Role::GateUp : Role::Down, is_turned};
        if (is_turned ? !may_be_turned : !may_be_straight) continue;
        if (fits(packed.outer, reading.outer, is_turned, sizes) && fits(packed.inner, reading.inner, is_turned, sizes))
          all.push_back(reading);
      }
    if (all.empty())
      fail_shapes(named,
                  fmt::format("they fit no packed weight of experts with hidden size {} and intermediate size {}{}",
                              sizes.hidden, sizes.intermediate,
                              files_ == PackedFiles::Peft018 || files_ == PackedFiles::Peft019
                                  ? ", of files as --from-lora or the record says"
                                  : ""));
    if (const auto outer = usual_outer(packed)) {
      const auto is_usual = [&](const Reading& each) { return each.outer == *outer; };
      if (std::ranges::any_of(all, is_usual)) std::erase_if(all, [&](const Reading& each) { return !is_usual(each); });
    }
    if (all.size() == 1) return all.front();
    fail(
        ErrorCode::NotSupported, {{}, factors_[*named.a].name},
        "'{}' of the adapter: the shapes of '{}' do not tell whether PEFT before 0.19 wrote it, which took the axes of "
        "packed experts for one another; --from-lora peft-0.18 or --from-lora peft-0.19 says it",
        factors_[*named.a].name, module);
  }

  /// Returns what the outer wrapper is for: the parameter that was targeted last, or the only one.
  std::optional<Role> usual_outer(const PackedModule& packed) const {
    if (packed.outer != nullptr && packed.inner != nullptr) return Role::Down;
    const auto names = [&](std::string_view end) {
      return std::ranges::any_of(config_.target_parameters,
                                 [&](const std::string& name) { return name.ends_with(end); });
    };
    if (names("down_proj") == names("gate_up_proj")) return std::nullopt;
    const bool is_down = names("down_proj") == (packed.outer != nullptr);
    return is_down ? Role::Down : Role::GateUp;
  }

  void add_packed(const std::string& module, const Pair& pair, Role parameter, bool is_turned,
                  const PackedSizes& sizes) {
    const std::string name = module + (parameter == Role::Down ? ".down_proj" : ".gate_up_proj");
    const i64 stacked = shape_a(pair)[0];
    Factors factors = factors_of(pair);
    factors.experts = sizes.experts;
    factors.rank = stacked / sizes.experts;
    factors.inputs = parameter == Role::Down ? sizes.intermediate : sizes.hidden;
    factors.outputs = parameter == Role::Down ? sizes.hidden : 2 * sizes.intermediate;
    factors.is_turned = is_turned;
    factors.is_by_expert = files_ == PackedFiles::ByExpert;
    factors.scale = config_.scale_of(name);
    if (factors.rank < 1 || stacked % sizes.experts != 0 || stacked != shape_b(pair)[1] ||
        factors.rank != config_.rank_of(name))
      fail_shapes(
          pair, fmt::format("{} experts, and adapter_config.json says rank {}", sizes.experts, config_.rank_of(name)));
    if (parameter == Role::GateUp) {
      const Glu& order = model_.packed_order;
      if (order.kind != Glu::Kind::Contiguous && order.kind != Glu::Kind::Interleaved)
        fail(ErrorCode::UnknownGlu, {{}, factors_[*pair.b].name},
             "'{}' of the adapter: nothing says in which order a model of this type has gate and up where its experts "
             "are packed; load and save it with PEFT for experts by themselves",
             factors_[*pair.b].name);
      factors.block_rows = order.kind == Glu::Kind::Contiguous ? sizes.intermediate : order.block_rows;
    }
    found_.push_back({name, parameter, factors});
  }

  /// [E, rank, in] and [E, out, rank], or one pair of two axes for all experts.
  void add_megatron(const std::string& module, const Pair& pair) {
    std::string name = module;
    const Role role = cut_end(name, kMegatronGate) ? Role::Gate
                      : cut_end(name, kMegatronUp) ? Role::Up
                      : name.ends_with('2')        ? Role::Down
                                                   : Role::GateUp;
    const auto sizes = model_.sizes(name);
    if (!sizes || !name.starts_with(kMegatronLayers) || shape_a(pair).size() != shape_b(pair).size())
      fail(ErrorCode::UnknownTensor, {{}, factors_[*pair.a].name},
           "'{}' of the adapter is for experts under Megatron's names, and the model has none there; an adapter that "
           "is to be "
           "merged is converted with --to hf first",
           factors_[*pair.a].name);
    add_expert_first(name, pair, role, *sizes);
  }

  /// [E, rank, in] and [E, out, rank], or [1, ...] of a factor that all experts share.
  void add_stacked(const std::string& module, const Pair& pair) {
    const StackedPart& part = *stacked_part(module);
    if (shape_a(pair).size() != 3 || shape_b(pair).size() != 3)
      fail(ErrorCode::NotSupported, {{}, factors_[*pair.a].name},
           "'{}' is {} and '{}' {}: the name has no expert in it, as where vLLM or SGLang let experts share factors, "
           "and those have an axis of experts in front, of one where they share it",
           factors_[*pair.a].name, shape_text(shape_a(pair)), factors_[*pair.b].name, shape_text(shape_b(pair)));
    const auto sizes = model_.sizes(module.substr(0, module.rfind('.')));
    if (!sizes)
      fail(ErrorCode::UnknownTensor, {{}, factors_[*pair.a].name},
           "'{}' of the adapter is for experts, and the model has none there with gate and up; is the adapter for "
           "another model?",
           factors_[*pair.a].name);
    if (part.role == Role::GateUp && model_.packed_order.kind == Glu::Kind::Interleaved)
      fail(ErrorCode::UnknownGlu, {{}, factors_[*pair.b].name},
           "'{}': nothing says whether its rows are gate's and up's in turn, as the model has them, or one after the "
           "other",
           factors_[*pair.b].name);
    add_expert_first(module, pair, part.role, *sizes);
  }

  void add_expert_first(const std::string& module, const Pair& pair, Role role, const PackedSizes& sizes) {
    const std::vector<i64>&a = shape_a(pair), &b = shape_b(pair);
    const bool is_down = role == Role::Down, has_experts = a.size() == 3;
    Factors factors = factors_of(pair);
    factors.shares_a = !has_experts || (a[0] == 1 && sizes.experts > 1);
    factors.shares_b = !has_experts || (b[0] == 1 && sizes.experts > 1);
    factors.is_expert_first = true;
    factors.is_in_out = pair.is_in_out;
    factors.experts = sizes.experts;
    factors.rank = pair.is_in_out ? a.back() : a[a.size() - 2];
    factors.inputs = is_down ? sizes.intermediate : sizes.hidden;
    factors.outputs = is_down ? sizes.hidden : (role == Role::GateUp ? 2 : 1) * sizes.intermediate;
    factors.block_rows = role == Role::GateUp ? sizes.intermediate : 0;
    factors.scale = config_.scale_of(module);
    std::vector<i64> in = {factors.rank, factors.inputs}, out = {factors.outputs, factors.rank};
    if (pair.is_in_out)
      for (std::vector<i64>* shape : {&in, &out}) std::swap(shape->front(), shape->back());
    if (has_experts) {
      in.insert(in.begin(), factors.shares_a ? 1 : sizes.experts);
      out.insert(out.begin(), factors.shares_b ? 1 : sizes.experts);
    }
    if (a != in || b != out || factors.rank != config_.rank_of(module))
      fail_shapes(pair, fmt::format("{} experts of {} x {}, and adapter_config.json says rank {}", sizes.experts,
                                    factors.outputs, factors.inputs, config_.rank_of(module)));
    found_.push_back({module, role, factors});
  }

  const std::vector<TensorRef>& factors_;
  const AdapterConfig& config_;
  const AdaptedModel& model_;
  PackedFiles files_;
  std::map<std::string, Pair> pairs_;
  std::vector<AdaptedModule> found_;
};

/// `lines` rows of one factor in a tensor whose line of its stacked axis is `width` elements: expert and rank by rank.
Matrix stacked_matrix(const Factors& factors, std::size_t tensor, Dtype dtype, bool is_stacked_by_rows, i64 width) {
  Matrix matrix;
  matrix.tensor = tensor;
  matrix.dtype = dtype;
  matrix.element_bytes = dtype_bits(dtype) / 8;
  const i64 size = matrix.element_bytes, stacked = factors.experts * factors.rank;
  Placement& place = matrix.place;
  if (is_stacked_by_rows) {
    place.offset = ((factors.shares_a ? 0 : factors.expert) * factors.rank + factors.first_rank) * width * size;
    place.row_step = width * size;
    place.col_step = size;
  } else {
    place.offset = (factors.is_by_expert ? factors.expert * factors.rank : factors.expert) * size;
    place.row_step = (factors.is_by_expert ? 1 : factors.experts) * size;
    place.offset += factors.first_rank * place.row_step;
    place.col_step = stacked * size;
  }
  return matrix;
}

}  // namespace

// Ranks are the rows of what stacked_matrix() places.

Matrix matrix_of_a(const Factors& factors) {
  Matrix matrix = factors.is_turned ? stacked_matrix(factors, factors.b, factors.dtype_b, false, 0)
                                    : stacked_matrix(factors, factors.a, factors.dtype_a, true, factors.inputs);
  if (factors.is_in_out) {
    const i64 size = matrix.element_bytes;
    matrix.place.offset = (factors.expert * factors.inputs * factors.rank + factors.first_rank) * size;
    matrix.place.row_step = size;
    matrix.place.col_step = factors.rank * size;
  }
  matrix.rows = factors.ranks();
  matrix.cols = factors.inputs;
  matrix.place.block_rows = matrix.rows;
  return matrix;
}

Matrix matrix_of_b(const Factors& factors) {
  const i64 all_outputs = factors.block_rows == 0 ? factors.outputs : 2 * factors.outputs;
  Matrix matrix = factors.is_turned ? stacked_matrix(factors, factors.a, factors.dtype_a, true, all_outputs)
                                    : stacked_matrix(factors, factors.b, factors.dtype_b, false, 0);
  if (factors.is_expert_first) {
    const i64 size = matrix.element_bytes;
    matrix.place.offset =
        ((factors.shares_b ? 0 : factors.expert) * all_outputs * factors.rank + factors.first_rank) * size;
    matrix.place.row_step = size;
    matrix.place.col_step = factors.rank * size;
    if (factors.is_in_out) {
      matrix.place.offset = (factors.expert * factors.rank + factors.first_rank) * all_outputs * size;
      matrix.place.row_step = all_outputs * size;
      matrix.place.col_step = size;
    }
  }
  std::swap(matrix.place.row_step, matrix.place.col_step);
  matrix.rows = factors.outputs;
  matrix.cols = factors.ranks();
  Placement& place = matrix.place;
  place.offset += factors.first_row * place.row_step;
  place.block_rows = factors.block_rows == 0 ? factors.outputs : factors.block_rows;
  place.block_step = 2 * place.block_rows * place.row_step;
  return matrix;
}

Factors factors_of(const Factors& packed, i64 expert, Role role) {
  Factors one = packed;
  one.expert = expert;
  if (packed.block_rows == 0) return one;
  one.outputs /= 2;
  one.first_row = role == Role::Gate ? 0 : one.block_rows;
  return one;
}

std::vector<std::string> packed_files_words() { return {kPackedFiles.begin(), kPackedFiles.end()}; }

std::string packed_files_word(PackedFiles files) {
  return std::string(kPackedFiles[files == PackedFiles::Peft018 ? 0 : files == PackedFiles::ByExpert ? 2 : 1]);
}

PackedFiles parse_packed_files(const std::string& word) {
  if (word.empty()) return PackedFiles::Told;
  if (word == kPackedFiles[0]) return PackedFiles::Peft018;
  if (word == kPackedFiles[1]) return PackedFiles::Peft019;
  if (word == kPackedFiles[2]) return PackedFiles::ByExpert;
  fail(ErrorCode::Usage, {}, "'{}' is none of {}, the writers of factors of packed experts", word,
       fmt::join(kPackedFiles, ", "));
}

std::vector<AdaptedModule> read_factors(const Inventory& adapter, const AdapterConfig& config,
                                        const AdaptedModel& model, PackedFiles files) {
  return FactorReader(adapter, config, model, files).read();
}

}  // namespace glu_ckpt
