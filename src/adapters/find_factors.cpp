#include "adapters/find_factors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "families/architecture.hpp"
#include "families/expert_keys.hpp"
#include "layout/key_pattern.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kModel = "base_model.model.", kPacked = ".experts", kInner = ".base_layer";

/// A pair of factors by the module that they are for.
struct Pair {
  std::optional<std::size_t> a;
  std::optional<std::size_t> b;
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

/// The spelling of the family's experts on the hub, whose modules an adapter names.
const Naming* hub_naming(const Recognition& model) {
  const Naming* const own =
      model.architecture == nullptr ? nullptr : find_naming(model.architecture->family->expert_naming);
  return own == nullptr ? model.naming : own;
}

/// The order of gate and up in the packed form that transformers has of the family, whose rows B has.
Glu packed_order(const Recognition& model) {
  const Naming* const naming = hub_naming(model);
  if (naming == nullptr) return {};
  if (const Glu own = fixed_glu(*naming); own.kind != Glu::Kind::Unknown) return own;
  if (model.architecture == nullptr) return {};
  const std::string& type = model.architecture->model_type;
  for (const Naming& in_memory : namings())
    if (std::ranges::find(in_memory.in_memory_of, type) != in_memory.in_memory_of.end()) return fixed_glu(in_memory);
  return {};
}

class FactorFinder {
 public:
  FactorFinder(const Source& base, const Recognition& model, const Source& adapter, const AdapterConfig& config,
               bool two_roundings)
      : tensors_(base.inventory().tensors),
        model_(model),
        factors_(adapter.inventory().tensors),
        config_(config),
        two_roundings_(two_roundings) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) numbers_.emplace(tensors_[i].name, i);
  }

  std::vector<MergedMatrix> find() {
    for (const ExpertBlock& block : model_.blocks)
      if (block.is_optimizer_state())
        fail(ErrorCode::NotSupported, {{}, tensors_[block.matrices.front().tensor].name},
             "'{}': an optimizer's state goes on from the weights before --merge; leave it out (--optimizer drop)",
             tensors_[block.matrices.front().tensor].name);
    collect_pairs();
    std::map<std::string, PackedModule> packed;
    for (const auto& [module, pair] : pairs_) {
      std::string plain = module;
      const bool is_inner = cut_end(plain, kInner);
      if (plain.ends_with(kPacked) && !numbers_.contains(module + ".weight"))
        (is_inner ? packed[plain].inner : packed[plain].outer) = &pair;
      else
        add_module(module, pair);
    }
    for (const auto& [module, found] : packed) add_packed(module, found);
    std::ranges::stable_sort(found_, {}, [](const MergedMatrix& each) { return each.matrix.tensor; });
    return std::move(found_);
  }

 private:
  void collect_pairs() {
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      std::string name = factors_[i].name;
      if (name.starts_with(kModel)) name.erase(0, kModel.size());
      (void)cut_end(name, ".weight");
      (void)cut_end(name, ".default");
      const bool is_a = cut_end(name, ".lora_A");
      if (!is_a && !cut_end(name, ".lora_B"))
        fail(
            ErrorCode::NotSupported, {{}, factors_[i].name},
            "'{}' of the adapter is neither lora_A nor lora_B of a linear layer; --merge adds products of two factors, "
            "and nothing else. Merge it with PEFT",
            factors_[i].name);
      if (!is_float(factors_[i].dtype) || factors_[i].shape.size() != 2)
        fail(ErrorCode::NotSupported, {{}, factors_[i].name},
             "'{}' of the adapter is {} {}; factors are F32, BF16 or "
             "F16 of two axes",
             factors_[i].name, dtype_name(factors_[i].dtype), shape_text(factors_[i].shape));
      (is_a ? pairs_[name].a : pairs_[name].b) = i;
    }
    for (const auto& [module, pair] : pairs_)
      if (!pair.a || !pair.b)
        fail(ErrorCode::PartMissing, {{}, factors_[pair.a ? *pair.a : *pair.b].name},
             "'{}' of the adapter is there, and its other factor is not; is the download complete?",
             factors_[pair.a ? *pair.a : *pair.b].name);
  }

  const std::vector<i64>& shape_a(const Pair& pair) const { return factors_[*pair.a].shape; }
  const std::vector<i64>& shape_b(const Pair& pair) const { return factors_[*pair.b].shape; }

  [[noreturn]] void fail_shapes(const Pair& pair, const std::string& why) const {
    fail(ErrorCode::SizeMismatch, {{}, factors_[*pair.a].name}, "'{}' is {} and '{}' {}: {}", factors_[*pair.a].name,
         shape_text(shape_a(pair)), factors_[*pair.b].name, shape_text(shape_b(pair)), why);
  }

  /// A linear layer of the model, or of one expert.
  void add_module(const std::string& module, const Pair& pair) {
    Factors factors{.a = *pair.a, .b = *pair.b, .rank = shape_a(pair)[0]};
    factors.merging = {config_.scale_of(module), two_roundings_};
    if (factors.rank < 1 || factors.rank != shape_b(pair)[1] || factors.rank != config_.rank_of(module))
      fail_shapes(pair, fmt::format("adapter_config.json says rank {}", config_.rank_of(module)));
    const Matrix* matrix = nullptr;
    Matrix whole;
    if (const auto found = numbers_.find(module + ".weight"); found != numbers_.end()) {
      whole = whole_matrix(found->second);
      matrix = &whole;
    } else {
      matrix = matrix_of(module);
    }
    if (matrix == nullptr)
      fail(ErrorCode::UnknownTensor, {{}, factors_[*pair.a].name},
           "'{}' of the adapter is for '{}.weight', which the model does not have. Is the adapter for another model? "
           "Into a model "
           "under a trainer's names experts alone are merged; use its Hugging Face form",
           factors_[*pair.a].name, module);
    if (matrix->rows != shape_b(pair)[0] || matrix->cols != shape_a(pair)[1])
      fail_shapes(pair, fmt::format("'{}' has {} x {} weights for them", tensors_[matrix->tensor].name, matrix->rows,
                                    matrix->cols));
    add(*matrix, factors);
  }

  Matrix whole_matrix(std::size_t tensor) const {
    const TensorRef& stored = tensors_[tensor];
    if (stored.shape.size() != 2)
      fail(ErrorCode::NotSupported, {{}, stored.name}, "'{}' is {}; --merge changes weights of two axes", stored.name,
           shape_text(stored.shape));
    Matrix matrix;
    matrix.tensor = tensor;
    matrix.dtype = stored.dtype;
    matrix.rows = stored.shape[0];
    matrix.cols = stored.shape[1];
    matrix.element_bytes = std::max<i64>(dtype_bits(stored.dtype) / 8, 1);
    matrix.place = {0, std::max<i64>(matrix.rows, 1), 0, matrix.cols * matrix.element_bytes, matrix.element_bytes};
    return matrix;
  }

  /// What the hub's spelling of experts, or else another family's, says of a key.
  struct ExpertKey {
    const ExpertBlock* block = nullptr;
    Role role = Role::Gate;
    i64 expert = 0;
  };
  ExpertKey expert_key(const std::string& key) const {
    const KeySkeleton skeleton = skeletonize(key);
    const std::vector<const KeyPattern*> patterns = match_patterns(skeleton);
    if (patterns.empty()) return {};
    const auto own = std::ranges::find(patterns, hub_naming(model_), &KeyPattern::naming);
    const KeyPattern& pattern = own == patterns.end() ? *patterns.front() : **own;
    const KeyParts parts = parse_key(key, skeleton, pattern);
    const auto is_it = [&](const ExpertBlock& block) {
      return block.set == pattern.set && block.stack == parts.stack && block.layer == parts.layer;
    };
    const auto block = std::ranges::find_if(model_.blocks, is_it);
    if (block == model_.blocks.end()) return {};
    return {&*block, pattern.role, pattern.has_expert ? find_expert_part(key, pattern).expert : 0};
  }

  /// The matrix of an expert that is stored together with others.
  const Matrix* matrix_of(const std::string& module) const {
    const ExpertKey found = expert_key(module + ".weight");
    return found.block == nullptr ? nullptr : matrix_of(*found.block, found.role, found.expert);
  }

  const Matrix* matrix_of(const ExpertBlock& block, Role role, i64 expert) const {
    if (block.glu.kind == Glu::Kind::Unknown)
      fail(
          ErrorCode::UnknownGlu, {{}, tensors_[block.matrices.front().tensor].name},
          "'{}': nothing says in which order its rows of gate and up are, and --merge changes each by its own factors; "
          "say --from-glu contiguous or --from-glu interleaved:K",
          tensors_[block.matrices.front().tensor].name);
    const auto is_it = [&](const Matrix& each) {
      return each.kind == TensorKind::Weight && each.role == role && each.expert == expert;
    };
    const auto found = std::ranges::find_if(block.matrices, is_it);
    return found == block.matrices.end() ? nullptr : &*found;
  }

  // ---- packed experts ------------------------------------------------------------------------------

  void add_packed(const std::string& module, const PackedModule& packed) {
    const Pair& named = packed.outer != nullptr ? *packed.outer : *packed.inner;
    const ExpertBlock* const block = expert_key(module + ".gate_up_proj").block;
    if (block == nullptr || block->glu.kind == Glu::Kind::None || block->intermediate_size <= 0)
      fail(ErrorCode::UnknownTensor, {{}, factors_[*named.a].name},
           "'{}' of the adapter is for packed experts of '{}', and the model has none there with gate and up; is the "
           "adapter for another model?",
           factors_[*named.a].name, module);
    const Reading reading = reading_of(module, packed, *block);
    if (packed.outer != nullptr) add_packed(module, *packed.outer, reading.outer, reading.is_turned, *block);
    if (packed.inner != nullptr) add_packed(module, *packed.inner, reading.inner, reading.is_turned, *block);
  }

  bool fits(const Pair* pair, Role role, bool is_turned, const ExpertBlock& block) const {
    if (pair == nullptr) return true;
    const i64 outputs = role == Role::Down ? block.hidden_size : 2 * block.intermediate_size;
    const i64 inputs = role == Role::Down ? block.intermediate_size : block.hidden_size;
    return shape_a(*pair)[1] == (is_turned ? outputs : inputs) && shape_b(*pair)[0] == (is_turned ? inputs : outputs);
  }

  /// Finds what the factors are for by their shapes; where these fit both parameters, by PEFT's order of wrappers.
  Reading reading_of(const std::string& module, const PackedModule& packed, const ExpertBlock& block) const {
    // Experts [in, out] were never turned.
    const bool may_be_turned = hub_naming(model_)->axes == Axes::OutIn;
    std::vector<Reading> all;
    for (const bool is_turned : {false, true})
      for (const Role outer : {Role::Down, Role::GateUp}) {
        const Reading reading{outer, outer == Role::Down ? Role::GateUp : Role::Down, is_turned};
        if (is_turned && !may_be_turned) continue;
        if (fits(packed.outer, reading.outer, is_turned, block) && fits(packed.inner, reading.inner, is_turned, block))
          all.push_back(reading);
      }
    const Pair& named = packed.outer != nullptr ? *packed.outer : *packed.inner;
    if (all.empty())
      fail_shapes(named,
                  fmt::format("they fit no packed weight of experts with hidden size {} and intermediate size {}",
                              block.hidden_size, block.intermediate_size));
    if (const auto outer = usual_outer(packed)) {
      const auto is_usual = [&](const Reading& each) { return each.outer == *outer; };
      if (std::ranges::any_of(all, is_usual)) std::erase_if(all, [&](const Reading& each) { return !is_usual(each); });
    }
    if (all.size() == 1) return all.front();
    fail(
        ErrorCode::NotSupported, {{}, factors_[*named.a].name},
        "'{}' of the adapter: the shapes of '{}' do not tell whether PEFT before 0.19 wrote it, which took the axes of "
        "packed experts for one another; load and save it with the PEFT that wrote it, for experts by themselves",
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
                  const ExpertBlock& block) {
    const std::string name = module + (parameter == Role::Down ? ".down_proj" : ".gate_up_proj");
    const i64 stacked = shape_a(pair)[0], experts = block.num_experts;
    Factors factors{.a = *pair.a, .b = *pair.b, .rank = stacked / experts, .experts = experts, .is_turned = is_turned};
    // PEFT rounds what it adds to a parameter.
    factors.merging = {config_.scale_of(name), true};
    if (factors.rank < 1 || stacked % experts != 0 || stacked != shape_b(pair)[1] ||
        factors.rank != config_.rank_of(name))
      fail_shapes(pair,
                  fmt::format("{} experts, and adapter_config.json says rank {}", experts, config_.rank_of(name)));
    for (i64 expert = 0; expert < experts; ++expert) {
      factors.expert = expert;
      if (parameter == Role::Down) {
        add_expert(block, Role::Down, factors);
        continue;
      }
      const Glu order = packed_order(model_);
      if (order.kind != Glu::Kind::Contiguous && order.kind != Glu::Kind::Interleaved)
        fail(ErrorCode::UnknownGlu, {{}, factors_[*pair.b].name},
             "'{}' of the adapter: nothing says in which order a model of this type has gate and up where its experts "
             "are packed; load and save it with PEFT for experts by themselves",
             factors_[*pair.b].name);
      factors.block_rows = order.kind == Glu::Kind::Contiguous ? block.intermediate_size : order.block_rows;
      factors.first_row = 0;
      add_expert(block, Role::Gate, factors);
      factors.first_row = factors.block_rows;
      add_expert(block, Role::Up, factors);
    }
  }

  void add_expert(const ExpertBlock& block, Role role, const Factors& factors) {
    const Matrix* const matrix = matrix_of(block, role, factors.expert);
    if (matrix == nullptr)
      fail(ErrorCode::UnknownTensor, {{}, factors_[factors.a].name},
           "'{}' of the adapter is for expert {} of layer {}, whose {} the model does not have",
           factors_[factors.a].name, factors.expert, block.layer, to_string(role));
    add(*matrix, factors);
  }

  void add(const Matrix& matrix, const Factors& factors) {
    const TensorRef& stored = tensors_[matrix.tensor];
    if (!is_float(matrix.dtype))
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' is {}: a product is added to numbers; --decode bf16 beside --merge makes numbers of codes first",
           stored.name, dtype_name(matrix.dtype));
    if (matrix.tail)
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' is half of an FC1 that was cut in the middle; convert the model to Hugging Face's form, then merge",
           stored.name);
    found_.push_back({matrix, factors});
  }

  const std::vector<TensorRef>& tensors_;
  const Recognition& model_;
  const std::vector<TensorRef>& factors_;
  const AdapterConfig& config_;
  bool two_roundings_;
  std::map<std::string_view, std::size_t> numbers_;
  std::map<std::string, Pair> pairs_;
  std::vector<MergedMatrix> found_;
};

}  // namespace

std::vector<MergedMatrix> find_factors(const Source& base, const Recognition& model, const Source& adapter,
                                       const AdapterConfig& config, bool two_roundings) {
  return FactorFinder(base, model, adapter, config, two_roundings).find();
}

}  // namespace glu_ckpt
