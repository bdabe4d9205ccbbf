#include "adapters/find_factors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "adapters/logical_adapter.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/key_pattern.hpp"

namespace glu_ckpt {
namespace {

class FactorFinder {
 public:
  FactorFinder(const Source& base, const Recognition& model, const Source& adapter, const AdapterConfig& config,
               const MergeAnswers& answers)
      : tensors_(base.inventory().tensors),
        model_(model),
        adapter_(adapter.inventory()),
        factors_(adapter_.tensors),
        config_(config),
        answers_(answers) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) numbers_.emplace(tensors_[i].name, i);
  }

  std::vector<MergedMatrix> find() {
    for (const ExpertBlock& block : model_.blocks)
      if (block.is_optimizer_state())
        fail_asking(
            {"--optimizer"}, ErrorCode::NotSupported, {{}, tensors_[block.matrices.front().tensor].name},
            "'{}': an optimizer's state goes on from the weights before --merge; leave it out (--optimizer drop)",
            tensors_[block.matrices.front().tensor].name);
    AdaptedModel adapted = adapted_model(hub_naming(model_), model_.architecture.get());
    adapted.sizes = [&](const std::string& module) -> std::optional<PackedSizes> {
      const ExpertBlock* const block = block_of(module);
      if (block == nullptr || block->glu.kind == Glu::Kind::None || block->intermediate_size <= 0) return std::nullopt;
      return PackedSizes{block->num_experts, block->hidden_size, block->intermediate_size};
    };
    adapted.is_linear = [&](const std::string& module) { return linear_at(module) != numbers_.end(); };
    for (const AdaptedModule& module : read_factors(adapter_, config_, adapted, answers_.files))
      module.packed ? add_packed(module) : add_module(module);
    std::ranges::stable_sort(found_, {}, [](const MergedMatrix& each) { return each.matrix.tensor; });
    check_once();
    return std::move(found_);
  }

 private:
  /// A matrix may be adapted as one of packed experts and by a module of its own: PEFT has the one or the other.
  void check_once() const {
    std::map<std::pair<std::size_t, i64>, std::size_t> factors_at;
    for (const MergedMatrix& each : found_) {
      const std::size_t own = each.factors.a;
      const auto [first, is_new] = factors_at.emplace(std::pair(each.matrix.tensor, each.matrix.place.offset), own);
      if (!is_new)
        fail(ErrorCode::RedundantKeys, {{}, factors_[own].name},
             "'{}' and '{}' of the adapter are factors of one matrix, in '{}'; take one of the two pairs out",
             factors_[first->second].name, factors_[own].name, tensors_[each.matrix.tensor].name);
    }
  }

  const std::vector<i64>& shape_a(const Factors& factors) const { return factors_[factors.a].shape; }
  const std::vector<i64>& shape_b(const Factors& factors) const { return factors_[factors.b].shape; }

  using Numbers = std::map<std::string, std::size_t, std::less<>>;

  /// Finds a linear layer's weight, also where an adapter of a language model names it and the model has that inside
  /// another one.
  Numbers::const_iterator linear_at(const std::string& module) const {
    auto found = numbers_.find(fmt::format("{}{}", module, kWeightEnd));
    if (found != numbers_.end() || model_.architecture == nullptr) return found;
    const std::string_view own = model_.architecture->family->root, root = model_.dense_root;
    if (module.starts_with(own))
      found = numbers_.find(fmt::format("{}{}{}", root, module.substr(own.size()), kWeightEnd));
    if (found == numbers_.end() && root.ends_with(own))
      found = numbers_.find(fmt::format("{}{}{}", root.substr(0, root.size() - own.size()), module, kWeightEnd));
    return found;
  }

  /// A linear layer of the model, or of one expert.
  void add_module(const AdaptedModule& module) {
    const Factors& factors = module.factors;
    const Matrix* matrix = nullptr;
    Matrix whole;
    if (const auto found = linear_at(module.name); found != numbers_.end()) {
      whole = whole_matrix(found->second);
      matrix = &whole;
    } else {
      matrix = matrix_of(module.name);
    }
    if (matrix == nullptr)
      fail(ErrorCode::UnknownTensor, {{}, factors_[factors.a].name},
           "'{}' of the adapter is for '{}.weight', which the model does not have. Is the adapter for another model? "
           "Into a model "
           "under a trainer's names experts alone are merged; use its Hugging Face form",
           factors_[factors.a].name, module.name);
    check_mergeable(*matrix, factors);
    if (matrix->rows != factors.outputs || matrix->cols != factors.inputs)
      fail(ErrorCode::SizeMismatch, {{}, factors_[factors.a].name},
           "'{}' is {} and '{}' {}: '{}' has {} x {} weights for them", factors_[factors.a].name,
           shape_text(shape_a(factors)), factors_[factors.b].name, shape_text(shape_b(factors)),
           tensors_[matrix->tensor].name, matrix->rows, matrix->cols);
    // PEFT rounds no product of DoRA's.
    add(*matrix, factors, answers_.two_roundings && !module.magnitudes);
    found_.back().magnitudes = module.magnitudes;
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

  /// Returns the part that a key names in the hub's spelling of experts, or else in another family's.
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
    // A file may hold several models with such a layer each: the key's own text says which. A single one needs none.
    const ExpertBlock* found = nullptr;
    int alike = 0;
    for (const ExpertBlock& block : model_.blocks) {
      if (block.set != pattern.set || block.stack != parts.stack || block.layer != parts.layer) continue;
      if (found == nullptr || block.scope == parts.scope) found = &block;
      ++alike;
    }
    if (found == nullptr || (alike > 1 && found->scope != parts.scope)) return {};
    return {found, pattern.role, pattern.has_expert ? find_expert_part(key, pattern).expert : 0};
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

  const ExpertBlock* block_of(const std::string& packed_module) const {
    return expert_key(packed_module + ".gate_up_proj").block;
  }

  void add_packed(const AdaptedModule& module) {
    const ExpertBlock& block = *block_of(module.name.substr(0, module.name.rfind('.')));
    for (i64 expert = 0; expert < module.factors.experts; ++expert)
      for (const Role role : {Role::Gate, Role::Up, Role::Down})
        if (module.is_for(role)) add_expert(block, role, factors_of(module.factors, expert, role));
  }

  void add_expert(const ExpertBlock& block, Role role, const Factors& factors) {
    const Matrix* const matrix = matrix_of(block, role, factors.expert);
    if (matrix == nullptr)
      fail(ErrorCode::UnknownTensor, {{}, factors_[factors.a].name},
           "'{}' of the adapter is for expert {} of layer {}, whose {} the model does not have",
           factors_[factors.a].name, factors.expert, block.layer, to_string(role));
    check_mergeable(*matrix, factors);
    // PEFT rounds what it adds to a parameter.
    add(*matrix, factors, true);
  }

  void check_mergeable(const Matrix& matrix, const Factors& factors) const {
    const TensorRef& stored = tensors_[matrix.tensor];
    if (!is_float(matrix.dtype))
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' is {}: a product is added to numbers; --decode bf16 beside --merge makes numbers of codes first",
           stored.name, dtype_name(matrix.dtype));
    if (matrix.tail)
      fail(ErrorCode::NotSupported, {{}, stored.name},
           "'{}' is half of an FC1 that was cut in the middle; convert the model to Hugging Face's form, then merge",
           stored.name);
    const bool is_embedding = std::ranges::any_of(model_.dense, [&](const DenseMatrix& dense) {
      return dense.role == DenseRole::Embedding && dense.matrix.tensor == matrix.tensor;
    });
    if (is_embedding)
      fail(ErrorCode::NotSupported, {{}, factors_[factors.a].name},
           "'{}' is for '{}', an embedding: PEFT calls the factors of one lora_embedding_A and lora_embedding_B, and "
           "applies none of this name",
           factors_[factors.a].name, stored.name);
  }

  void add(const Matrix& matrix, const Factors& factors, bool rounds_product) {
    found_.push_back({matrix, factors, {factors.scale, rounds_product}});
  }

  const std::vector<TensorRef>& tensors_;
  const Recognition& model_;
  const Inventory& adapter_;
  const std::vector<TensorRef>& factors_;
  const AdapterConfig& config_;
  const MergeAnswers& answers_;
  Numbers numbers_;
  std::vector<MergedMatrix> found_;
};

}  // namespace

std::vector<MergedMatrix> find_factors(const Source& base, const Recognition& model, const Source& adapter,
                                       const AdapterConfig& config, const MergeAnswers& answers) {
  return FactorFinder(base, model, adapter, config, answers).find();
}

}  // namespace glu_ckpt
