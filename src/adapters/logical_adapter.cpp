#include "adapters/logical_adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "layout/key_pattern.hpp"
#include "layout/layout_table.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

class ExpertFinder {
 public:
  ExpertFinder(const FactorElements& elements, const std::vector<TensorRef>& tensors, const AdapterFacts& facts,
               bool parts_ranks)
      : elements_(elements), tensors_(tensors), facts_(facts), parts_ranks_(parts_ranks) {
    found_.naming = facts.naming;
  }

  LogicalAdapter run(const std::vector<AdaptedModule>& modules) {
    for (const AdaptedModule& module : modules) module.packed ? take_packed(module) : take_linear(module);
    return std::move(found_);
  }

 private:
  const Architecture* architecture() const { return facts_.architecture; }
  const Naming& named() const {
    if (found_.naming == nullptr) fail(ErrorCode::NoMap, {}, "nothing says how the model's family spells its experts");
    return *found_.naming;
  }

  const KeyPattern* pattern_of(const KeySkeleton& skeleton) const {
    const std::vector<const KeyPattern*> patterns = match_patterns(skeleton);
    const auto own = std::ranges::find(patterns, facts_.naming, &KeyPattern::naming);
    return patterns.empty() ? nullptr : own == patterns.end() ? patterns.front() : *own;
  }

  ExpertLayer& layer_at(std::string prefix) {
    ExpertLayer& layer = found_.layers[prefix];
    layer.prefix = std::move(prefix);
    return layer;
  }

  void take_linear(const AdaptedModule& module) {
    const std::string key = fmt::format("{}{}", module.name, kWeightEnd);
    const KeySkeleton skeleton = skeletonize(key);
    const KeyPattern* const pattern = pattern_of(skeleton);
    if (pattern == nullptr || !pattern->has_expert || pattern->set != ExpertSet::Routed ||
        std::ranges::find(kExpertRoles, pattern->role) == kExpertRoles.end()) {
      found_.plain.push_back(module);
      return;
    }
    const ExpertPart part = find_expert_part(key, *pattern);
    const i64 experts = architecture() == nullptr ? 0 : architecture()->num_experts;
    if (experts > 0 && part.expert >= experts)
      fail(ErrorCode::UnknownTensor, {{}, tensors_[module.factors.a].name},
           "'{}' is for expert {}, and config.json says {} experts; is the adapter for another model?",
           tensors_[module.factors.a].name, part.expert, experts);
    check_sizes(module.factors, pattern->role);
    if (found_.naming == nullptr) found_.naming = pattern->naming;
    put(layer_at(key.substr(0, part.begin)).experts[part.expert][index_of(pattern->role)],
        {module.factors, facts_.config.alpha_of(module.name), module.magnitudes, module.name});
  }

  /// Packed factors and an expert's own, or those of two spellings, may be of one matrix: a merge would add both.
  void put(std::optional<ExpertFactors>& place, ExpertFactors factors) const {
    if (place)
      fail(ErrorCode::RedundantKeys, {{}, tensors_[factors.factors.a].name},
           "'{}' and '{}' of the adapter are factors of one matrix of one expert; take one of the two pairs out",
           tensors_[place->factors.a].name, tensors_[factors.factors.a].name);
    place = std::move(factors);
  }

  void check_sizes(const Factors& factors, Role role) const {
    if (architecture() == nullptr || architecture()->expert_width <= 0) return;
    const i64 hidden = architecture()->expert_hidden, width = architecture()->expert_width;
    const i64 inputs = role == Role::Down ? width : hidden, outputs = role == Role::Down ? hidden : width;
    if (factors.inputs == inputs && factors.outputs == outputs) return;
    fail(ErrorCode::SizeMismatch, {{}, tensors_[factors.a].name},
         "'{}' is {} and '{}' {}: config.json makes {} of an expert {} x {}", tensors_[factors.a].name,
         shape_text(tensors_[factors.a].shape), tensors_[factors.b].name, shape_text(tensors_[factors.b].shape),
         to_string(role), outputs, inputs);
  }

  static bool is_megatron(const std::string& name) {
    return name.starts_with(kMegatronLayers) && name.find(kMegatronExperts) != name.npos;
  }

  /// "model.layers.3." of "decoder.layers.3.mlp.experts.linear_fc1".
  std::string hub_prefix(const std::string& name) const {
    const std::string number =
        name.substr(kMegatronLayers.size(), name.find('.', kMegatronLayers.size()) + 1 - kMegatronLayers.size());
    return fmt::format("{}{}", hub_layers(named()), number);
  }

  void take_packed(const AdaptedModule& module) {
    const std::string& name = module.name;
    // Any part of the experts tells their layer.
    const std::string key = is_megatron(name) ? name : name.substr(0, name.rfind('.')) + ".down_proj";
    const KeyPattern* const pattern = pattern_of(skeletonize(key));
    if (pattern == nullptr && !is_megatron(key))
      fail(ErrorCode::UnknownTensor, {{}, tensors_[module.factors.a].name},
           "'{}' is for packed experts of '{}', which no naming spells so", tensors_[module.factors.a].name, name);
    ExpertLayer& layer =
        layer_at(is_megatron(key) ? hub_prefix(key) : key.substr(0, find_expert_part(key, *pattern).begin));
    const double alpha = facts_.config.alpha_of(module.name);
    const i64 gate_ranks = module.packed == Role::GateUp && parts_ranks_ ? ranks_of_gate(module.factors) : 0;
    for (i64 expert = 0; expert < module.factors.experts; ++expert)
      for (const Role role : kExpertRoles) {
        if (!module.is_for(role)) continue;
        ExpertFactors one{factors_of(module.factors, expert, role), alpha};
        if (gate_ranks > 0) one = with_own_ranks(std::move(one), role, gate_ranks);
        put(layer.experts[expert][index_of(role)], std::move(one));
      }
  }

  /// PEFT makes one pair of factors of gate's and up's by using some ranks for each: gate's come first.
  ExpertFactors with_own_ranks(ExpertFactors both, Role role, i64 gate_ranks) const {
    Factors& factors = both.factors;
    factors.first_rank = role == Role::Gate ? 0 : gate_ranks;
    factors.used_ranks = role == Role::Gate ? gate_ranks : factors.rank - gate_ranks;
    both.alpha = alpha_for(facts_.config, both.alpha, factors.rank, factors.used_ranks, factors,
                           "ranks of gate and up apart", tensors_[factors.a].name);
    return both;
  }

  /// Returns how many ranks are gate's, where gate's rows of B are zero from some rank on, of all experts, and up's
  /// before it; 0 where ranks serve both.
  i64 ranks_of_gate(const Factors& packed) const {
    i64 gate_end = 0, up_begin = packed.rank;
    for (i64 expert = 0; expert < packed.experts; ++expert) {
      const std::vector<double> gate = elements_.magnitudes(matrix_of_b(factors_of(packed, expert, Role::Gate)), true);
      const std::vector<double> up = elements_.magnitudes(matrix_of_b(factors_of(packed, expert, Role::Up)), true);
      for (i64 j = 0; j < packed.rank; ++j) {
        if (gate[static_cast<std::size_t>(j)] != 0) gate_end = std::max(gate_end, j + 1);
        if (up[static_cast<std::size_t>(j)] != 0) up_begin = std::min(up_begin, j);
      }
    }
    if (gate_end == 0 || up_begin == packed.rank || gate_end > up_begin) return 0;
    const i64 half = packed.rank / 2;
    return gate_end <= half && half <= up_begin ? half : up_begin;
  }

  const FactorElements& elements_;
  const std::vector<TensorRef>& tensors_;
  const AdapterFacts& facts_;
  bool parts_ranks_ = false;
  LogicalAdapter found_;
};

bool is_same_place(const Matrix& a, const Matrix& b) {
  return a.tensor == b.tensor && a.place.offset == b.place.offset && a.place.row_step == b.place.row_step &&
         a.place.col_step == b.place.col_step && a.rows == b.rows && a.cols == b.cols;
}

}  // namespace

std::size_t index_of(Role role) {
  return static_cast<std::size_t>(std::ranges::find(kExpertRoles, role) - kExpertRoles.begin());
}

bool ExpertLayer::has(Role role) const {
  return std::ranges::any_of(experts, [&](const auto& each) { return each.second[index_of(role)].has_value(); });
}

const ExpertFactors* ExpertLayer::find(i64 expert, Role role) const {
  const auto found = experts.find(expert);
  if (found == experts.end() || !found->second[index_of(role)]) return nullptr;
  return &*found->second[index_of(role)];
}

/// Calls `use` with the elements of one row after the other, [cols] of element_bytes; false as soon as it says so.
template <typename Use>
bool FactorElements::for_each_row(const Matrix& matrix, const Use& use) const {
  const i64 size = matrix.element_bytes;
  std::vector<std::byte> row(static_cast<std::size_t>(matrix.cols * size));
  if (matrix.place.col_step == size) {
    for (i64 r = 0; r < matrix.rows; ++r) {
      adapter_.read(matrix.tensor, row_offset(matrix.place, r), row);
      if (!use(std::span<const std::byte>(row), r)) return false;
    }
    return true;
  }
  const auto kept = tensors_read_.get(matrix.tensor, [&] {
    KeptBytes whole{std::vector<std::byte>(static_cast<std::size_t>(tensors_[matrix.tensor].bytes))};
    adapter_.read(matrix.tensor, 0, whole.data);
    return whole;
  });
  for (i64 r = 0; r < matrix.rows; ++r) {
    const std::byte* const from = kept->data.data() + row_offset(matrix.place, r);
    for (i64 c = 0; c < matrix.cols; ++c) std::copy_n(from + c * matrix.place.col_step, size, row.data() + c * size);
    if (!use(std::span<const std::byte>(row), r)) return false;
  }
  return true;
}

std::vector<double> FactorElements::magnitudes(const Matrix& matrix, bool of_columns) const {
  std::vector<double> sums(static_cast<std::size_t>(of_columns ? matrix.cols : matrix.rows));
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  (void)for_each_row(matrix, [&](std::span<const std::byte> row, i64 r) {
    widen_row(row.data(), matrix.dtype, values);
    double* const sum = sums.data() + (of_columns ? 0 : r);
    const std::size_t step = of_columns ? 1 : 0;
    for (std::size_t c = 0; c < values.size(); ++c) sum[c * step] += std::abs(static_cast<double>(values[c]));
    return true;
  });
  return sums;
}

std::vector<bool> FactorElements::live_ranks(const Factors& factors) const {
  const std::vector<double> a = magnitudes(matrix_of_a(factors), false), b = magnitudes(matrix_of_b(factors), true);
  std::vector<bool> live;
  for (std::size_t j = 0; j < a.size(); ++j)
    live.push_back((a[j] != 0 && b[j] != 0) || !std::isfinite(a[j]) || !std::isfinite(b[j]));
  return live;
}

bool FactorElements::are_equal(const Matrix& a, const Matrix& b) const {
  if (is_same_place(a, b)) return true;
  if (a.rows != b.rows || a.cols != b.cols || a.dtype != b.dtype) return false;
  std::vector<std::byte> all;
  (void)for_each_row(a, [&](std::span<const std::byte> row, i64) {
    all.insert(all.end(), row.begin(), row.end());
    return true;
  });
  return for_each_row(b, [&](std::span<const std::byte> row, i64 r) {
    return std::ranges::equal(row, std::span(all).subspan(static_cast<std::size_t>(r) * row.size(), row.size()));
  });
}

std::string_view hub_layers(const Naming& naming) {
  return std::ranges::find(naming.stacks, "decoder", &StackPrefix::stack)->before;
}

double alpha_for(const AdapterConfig& config, double alpha, i64 ranks, i64 other_ranks, const Factors& factors,
                 const std::string& what, const std::string& tensor) {
  if (ranks == other_ranks) return alpha;
  const double ratio = static_cast<double>(other_ranks) / static_cast<double>(ranks);
  const double other = alpha * (config.rank_stabilized ? std::sqrt(ratio) : ratio);
  AdapterConfig tried;
  tried.rank = other_ranks;
  tried.rank_stabilized = config.rank_stabilized;
  // The square root of a ratio and its inverse leave a number beside the one that was typed.
  for (const double candidate : {config.alpha, std::round(other), other}) {
    tried.alpha = candidate;
    if (tried.scale_of("") == factors.scale) return candidate;
  }
  fail(ErrorCode::NotExact, {{}, tensor},
       "'{}': with {}, {} ranks instead of {}, no lora_alpha gives its scale {} to the bit", tensor, what, other_ranks,
       ranks, factors.scale);
}

LogicalAdapter find_expert_factors(const FactorElements& elements, const std::vector<TensorRef>& tensors,
                                   const AdapterFacts& facts, const std::vector<AdaptedModule>& modules,
                                   bool parts_ranks) {
  return ExpertFinder(elements, tensors, facts, parts_ranks).run(modules);
}

const Naming* hub_naming(const Recognition& model) {
  const Naming* const own =
      model.architecture == nullptr ? nullptr : find_naming(model.architecture->family->expert_naming);
  return own == nullptr ? model.naming : own;
}

const Naming* packed_naming(const Naming& hub, const Architecture* architecture) {
  if (fixed_glu(hub).kind != Glu::Kind::Unknown || architecture == nullptr) return &hub;
  const std::string& type = architecture->model_type;
  for (const Naming& in_memory : namings())
    if (std::ranges::find(in_memory.in_memory_of, type) != in_memory.in_memory_of.end()) return &in_memory;
  return &hub;
}

AdaptedModel adapted_model(const Naming* hub, const Architecture* architecture) {
  AdaptedModel model;
  model.sizes = [](const std::string&) { return std::nullopt; };
  model.is_linear = [](const std::string&) { return false; };
  if (hub == nullptr) return model;
  model.packed_order = fixed_glu(*packed_naming(*hub, architecture));
  model.axes = hub->axes;
  return model;
}

}  // namespace glu_ckpt
