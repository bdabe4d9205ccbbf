#include "adapters/adapter_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/kept.hpp"
#include "layout/key_pattern.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr auto kRoles = std::to_array<Role>({Role::Gate, Role::Up, Role::Down});
/// Bytes of tensors, read whole, in whose columns experts lie.
constexpr i64 kKeptBytes = i64{128} << 20;

/// The factors of gate, up or down of one expert.
struct ExpertFactors {
  Factors factors;
  double alpha = 0;
  std::optional<std::size_t> magnitudes = std::nullopt;
  /// Its name where it is a linear layer of its own.
  std::string name = {};
};

/// The routed experts of one layer.
struct Layer {
  /// "model.layers.3.": the text in front of the expert part.
  std::string prefix;
  std::map<i64, std::array<std::optional<ExpertFactors>, 3>> experts;
};

std::string without_weight(std::string name) {
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  return name;
}

std::size_t index_of(Role role) { return static_cast<std::size_t>(std::ranges::find(kRoles, role) - kRoles.begin()); }

class AdapterLayer {
 public:
  AdapterLayer(const Source& adapter, const AdapterConfig& config, const Naming* naming,
               const Architecture* architecture, const LayAnswers& answers)
      : adapter_(adapter),
        tensors_(adapter.inventory().tensors),
        config_(config),
        naming_(naming),
        architecture_(architecture),
        answers_(answers) {}

  LaidAdapter run(const std::vector<AdaptedModule>& modules) {
    for (const AdaptedModule& module : modules) module.packed ? take_packed(module) : take_linear(module);
    if (answers_.layout == AdapterLayout::Megatron && answers_.grow_rank)
      for (const auto& [prefix, layer] : layers_) least_ranks_ = std::max(least_ranks_, packed_ranks(layer));
    for (auto& [prefix, layer] : layers_)
      if (answers_.layout == AdapterLayout::Indexed)
        lay_indexed(layer);
      else if (answers_.layout == AdapterLayout::Megatron)
        lay_megatron(layer);
      else
        lay_packed(layer);
    if (answers_.layout == AdapterLayout::Megatron)
      check_megatron();
    else
      for (const AdaptedModule& module : plain_) lay_plain(module);
    return std::move(laid_);
  }

 private:
  // ---- the adapter as it is ---------------------------------------------------------------------

  const KeyPattern* pattern_of(const KeySkeleton& skeleton) const {
    const std::vector<const KeyPattern*> patterns = match_patterns(skeleton);
    const auto own = std::ranges::find(patterns, naming_, &KeyPattern::naming);
    return patterns.empty() ? nullptr : own == patterns.end() ? patterns.front() : *own;
  }

  Layer& layer_at(std::string prefix) {
    Layer& layer = layers_[prefix];
    layer.prefix = std::move(prefix);
    return layer;
  }

  void take_linear(const AdaptedModule& module) {
    const std::string key = fmt::format("{}{}", module.name, kWeight);
    const KeySkeleton skeleton = skeletonize(key);
    const KeyPattern* const pattern = pattern_of(skeleton);
    if (pattern == nullptr || !pattern->has_expert || pattern->set != ExpertSet::Routed ||
        std::ranges::find(kRoles, pattern->role) == kRoles.end()) {
      plain_.push_back(module);
      return;
    }
    const ExpertPart part = find_expert_part(key, *pattern);
    const i64 experts = architecture_ == nullptr ? 0 : architecture_->num_experts;
    if (experts > 0 && part.expert >= experts)
      fail(ErrorCode::UnknownTensor, {{}, tensors_[module.factors.a].name},
           "'{}' is for expert {}, and config.json says {} experts; is the adapter for another model?",
           tensors_[module.factors.a].name, part.expert, experts);
    check_sizes(module.factors, pattern->role);
    if (part_naming_ == nullptr) part_naming_ = pattern->naming;
    layer_at(key.substr(0, part.begin)).experts[part.expert][index_of(pattern->role)] =
        ExpertFactors{module.factors, config_.alpha_of(module.name), module.magnitudes, module.name};
  }

  void check_sizes(const Factors& factors, Role role) const {
    if (architecture_ == nullptr || architecture_->expert_width <= 0) return;
    const i64 hidden = architecture_->expert_hidden, width = architecture_->expert_width;
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

  std::string_view hub_layers() const {
    const auto& stacks = indexed_naming().stacks;
    return std::ranges::find(stacks, "decoder", &StackPrefix::stack)->before;
  }

  /// "model.layers.3." of "decoder.layers.3.mlp.experts.linear_fc1".
  std::string hub_prefix(const std::string& name) const {
    const std::string number =
        name.substr(kMegatronLayers.size(), name.find('.', kMegatronLayers.size()) + 1 - kMegatronLayers.size());
    return fmt::format("{}{}", hub_layers(), number);
  }

  void take_packed(const AdaptedModule& module) {
    const std::string& name = module.name;
    // Any part of the experts tells their layer.
    const std::string key = is_megatron(name) ? name : name.substr(0, name.rfind('.')) + ".down_proj";
    const KeyPattern* const pattern = pattern_of(skeletonize(key));
    if (pattern == nullptr && !is_megatron(key))
      fail(ErrorCode::UnknownTensor, {{}, tensors_[module.factors.a].name},
           "'{}' is for packed experts of '{}', which no naming spells so", tensors_[module.factors.a].name, name);
    Layer& layer = layer_at(is_megatron(key) ? hub_prefix(key) : key.substr(0, find_expert_part(key, *pattern).begin));
    const double alpha = config_.alpha_of(module.name);
    const bool may_be_apart =
        module.packed == Role::GateUp && answers_.layout == AdapterLayout::Indexed && !answers_.live_ranks;
    const i64 gate_ranks = may_be_apart ? ranks_of_gate(module.factors) : 0;
    for (i64 expert = 0; expert < module.factors.experts; ++expert)
      for (const Role role : kRoles) {
        if (!module.is_for(role)) continue;
        ExpertFactors one{factors_of(module.factors, expert, role), alpha};
        if (gate_ranks > 0) one = with_own_ranks(std::move(one), role, gate_ranks);
        layer.experts[expert][index_of(role)] = std::move(one);
      }
  }

  /// PEFT makes one pair of factors of gate's and up's by using some ranks for each: gate's come first.
  ExpertFactors with_own_ranks(ExpertFactors both, Role role, i64 gate_ranks) const {
    Factors& factors = both.factors;
    factors.first_rank = role == Role::Gate ? 0 : gate_ranks;
    factors.used_ranks = role == Role::Gate ? gate_ranks : factors.rank - gate_ranks;
    both.alpha = alpha_for(both.alpha, factors.rank, factors.used_ranks, factors, "ranks of gate and up apart");
    return both;
  }

  /// Returns how many ranks are gate's, where gate's rows of B are zero from some rank on, of all experts, and up's
  /// before it; 0 where ranks serve both.
  i64 ranks_of_gate(const Factors& packed) const {
    i64 gate_end = 0, up_begin = packed.rank;
    for (i64 expert = 0; expert < packed.experts; ++expert) {
      const std::vector<double> gate = magnitudes(matrix_of_b(factors_of(packed, expert, Role::Gate)), true);
      const std::vector<double> up = magnitudes(matrix_of_b(factors_of(packed, expert, Role::Up)), true);
      for (i64 j = 0; j < packed.rank; ++j) {
        if (gate[static_cast<std::size_t>(j)] != 0) gate_end = std::max(gate_end, j + 1);
        if (up[static_cast<std::size_t>(j)] != 0) up_begin = std::min(up_begin, j);
      }
    }
    if (gate_end == 0 || up_begin == packed.rank || gate_end > up_begin) return 0;
    const i64 half = packed.rank / 2;
    return gate_end <= half && half <= up_begin ? half : up_begin;
  }

  // ---- elements ---------------------------------------------------------------------------------

  /// Calls `use` with the elements of one row after the other, [cols] of element_bytes; false as soon as it says so.
  template <typename Use>
  bool for_each_row(const Matrix& matrix, const Use& use) const {
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

  /// The sums of the magnitudes in each row, or in each column: zero where all elements are, and not finite where one
  /// is not.
  std::vector<double> magnitudes(const Matrix& matrix, bool of_columns) const {
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

  /// Says of each rank whether its row of A and its column of B have a product that is not zero everywhere.
  std::vector<bool> live_ranks(const Factors& factors) const {
    const std::vector<double> a = magnitudes(matrix_of_a(factors), false), b = magnitudes(matrix_of_b(factors), true);
    std::vector<bool> live;
    for (std::size_t j = 0; j < a.size(); ++j)
      live.push_back((a[j] != 0 && b[j] != 0) || !std::isfinite(a[j]) || !std::isfinite(b[j]));
    return live;
  }

  bool is_same_place(const Matrix& a, const Matrix& b) const {
    return a.tensor == b.tensor && a.place.offset == b.place.offset && a.place.row_step == b.place.row_step &&
           a.place.col_step == b.place.col_step && a.rows == b.rows && a.cols == b.cols;
  }

  bool are_equal(const Matrix& a, const Matrix& b) const {
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

  /// Returns the alpha with which other ranks give the same scale.
  double alpha_for(double alpha, i64 ranks, i64 other_ranks, const Factors& factors, const std::string& what) const {
    if (ranks == other_ranks) return alpha;
    const double ratio = static_cast<double>(other_ranks) / static_cast<double>(ranks);
    const double other = alpha * (config_.rank_stabilized ? std::sqrt(ratio) : ratio);
    AdapterConfig tried;
    tried.rank = other_ranks;
    tried.rank_stabilized = config_.rank_stabilized;
    // The square root of a ratio and its inverse leave a number beside the one that was typed.
    for (const double candidate : {config_.alpha, std::round(other), other}) {
      tried.alpha = candidate;
      if (tried.scale_of("") == factors.scale) return candidate;
    }
    fail(ErrorCode::NotExact, {{}, tensors_[factors.a].name},
         "'{}': with {}, {} ranks instead of {}, no lora_alpha gives its scale {} to the bit", tensors_[factors.a].name,
         what, other_ranks, ranks, factors.scale);
  }

  // ---- the other layout -------------------------------------------------------------------------

  const Naming& indexed_naming() const {
    if (naming_ != nullptr) return *naming_;
    if (part_naming_ != nullptr) return *part_naming_;
    fail(ErrorCode::NoMap, {}, "nothing says how the model's family spells its experts");
  }

  static std::string_view indexed_name(const Naming& naming, Role role) {
    return role == Role::Gate ? naming.indexed.gate : role == Role::Up ? naming.indexed.up : naming.indexed.down;
  }

  void lay_indexed(const Layer& layer) {
    const Naming& naming = indexed_naming();
    for (const auto& [expert, roles] : layer.experts)
      for (const Role role : kRoles) {
        const auto& found = roles[index_of(role)];
        if (!found) continue;
        const std::string_view part = indexed_name(naming, role);
        if (part.empty() && found->name.empty())
          fail(ErrorCode::NoSpelling, {}, "the naming {} has no key for {} of one expert", naming.name,
               to_string(role));
        // An adapter that has them apart keeps its own spelling.
        const std::string module =
            found->name.empty() || (naming_ != nullptr && !part.empty())
                ? layer.prefix + without_weight(print_part(part, TensorKind::Weight, std::to_string(expert)))
                : found->name;
        add_pair(module, found->factors, found->alpha, found->magnitudes);
      }
  }

  /// Adds the factors of one matrix as a linear layer's.
  void add_pair(const std::string& module, const Factors& factors, double alpha,
                const std::optional<std::size_t>& magnitudes) {
    std::vector<bool> live(static_cast<std::size_t>(factors.ranks()), true);
    if (answers_.live_ranks && !magnitudes) live = live_ranks(factors);
    const i64 rank = std::ranges::count(live, true);
    if (rank == 0) return;
    Factors alone{.dtype_a = factors.stored_dtype_a(), .dtype_b = factors.stored_dtype_b()};
    alone.rank = rank;
    alone.inputs = factors.inputs;
    alone.outputs = factors.outputs;
    std::vector<LaidTensor::Part> parts_a, parts_b;
    for (i64 next = 0, done = 0; next < std::ssize(live); ++next) {
      if (!live[static_cast<std::size_t>(next)]) continue;
      Factors from = factors, to = alone;
      from.first_rank += next;
      to.first_rank = done;
      i64 count = 0;
      for (; next < std::ssize(live) && live[static_cast<std::size_t>(next)]; ++next) ++count;
      from.used_ranks = to.used_ranks = count;
      parts_a.push_back({matrix_of_a(from), matrix_of_a(to)});
      parts_b.push_back({matrix_of_b(from), matrix_of_b(to)});
      done += count;
    }
    add_tensor(fmt::format("{}{}.lora_A{}", kAdaptedModel, module, kWeight), alone.dtype_a, {rank, factors.inputs})
        .parts = std::move(parts_a);
    add_tensor(fmt::format("{}{}.lora_B{}", kAdaptedModel, module, kWeight), alone.dtype_b, {factors.outputs, rank})
        .parts = std::move(parts_b);
    if (magnitudes) add_whole(fmt::format("{}{}.lora_magnitude_vector", kAdaptedModel, module), *magnitudes);
    laid_.modules.push_back({module, false, factors.ranks(), alpha});
  }

  LaidTensor& add_tensor(std::string name, Dtype dtype, std::vector<i64> shape) {
    laid_.tensors.push_back({std::move(name), dtype, std::move(shape), {}});
    return laid_.tensors.back();
  }

  void add_whole(std::string name, std::size_t tensor) {
    const TensorRef& stored = tensors_[tensor];
    Matrix all;
    all.tensor = tensor;
    all.dtype = stored.dtype;
    all.element_bytes = dtype_bits(stored.dtype) / 8;
    all.rows = 1;
    all.cols = stored.bytes / all.element_bytes;
    all.place = {0, 1, stored.bytes, stored.bytes, all.element_bytes};
    add_tensor(std::move(name), stored.dtype, stored.shape).parts.push_back({all, all});
  }

  void lay_plain(const AdaptedModule& module) {
    add_pair(with_parent(module.name), module.factors, config_.alpha_of(module.name), module.magnitudes);
  }

  /// Mixtral's block is `mlp` where its experts are packed, and `block_sparse_moe` on the hub; its router is in it.
  std::string with_parent(const std::string& name) const {
    if (naming_ == nullptr) return name;
    const auto parent = [](std::string_view part) { return std::string(part.substr(0, part.find("experts"))); };
    const std::string hub = parent(naming_->indexed.down);
    const std::string packed = parent(packed_naming(*naming_, architecture_)->grouped.down);
    const bool to_packed = answers_.layout == AdapterLayout::Packed;
    const std::string &from = to_packed ? hub : packed, &to = to_packed ? packed : hub;
    if (from == to) return name;
    for (const auto& [prefix, layer] : layers_)
      if (name.starts_with(prefix + from)) return prefix + to + name.substr(prefix.size() + from.size());
    return name;
  }

  // ---- packed -----------------------------------------------------------------------------------

  void lay_megatron(const Layer& layer) {
    if (architecture_ == nullptr || !layer.prefix.starts_with(hub_layers()))
      fail(ErrorCode::NoSpelling, {}, "--to megatron: nothing says how Megatron spells '{}'", layer.prefix);
    const std::string module =
        fmt::format("{}{}{}", kMegatronLayers, layer.prefix.substr(hub_layers().size()), kMegatronExperts);
    const auto has = [&](Role role) {
      return std::ranges::any_of(layer.experts,
                                 [&](const auto& each) { return each.second[index_of(role)].has_value(); });
    };
    if (has(Role::Gate) || has(Role::Up)) lay_gate_up(layer, module + "1", module + "1", {Glu::Kind::Contiguous, 0});
    if (has(Role::Down)) lay_down(layer, module + "2", module + "2");
  }

  /// Megatron-Bridge has one rank and one alpha for all modules.
  void check_megatron() const {
    for (const AdaptedModule& module : plain_)
      fail(ErrorCode::NoMap, {{}, tensors_[module.factors.a].name},
           "'{}' is for '{}': only factors of routed experts have a place under Megatron's names here",
           tensors_[module.factors.a].name, module.name);
    for (const LaidModule& module : laid_.modules)
      if (module.rank != laid_.modules.front().rank || module.alpha != laid_.modules.front().alpha)
        fail(ErrorCode::NotExact, {},
             "--to megatron: '{}' has rank {} and lora_alpha {}, and '{}' {} and {}: Megatron-Bridge has one of each "
             "for "
             "all modules",
             module.name, module.rank, module.alpha, laid_.modules.front().name, laid_.modules.front().rank,
             laid_.modules.front().alpha);
  }

  void lay_packed(const Layer& layer) {
    const Naming& naming = *packed_naming(indexed_naming(), architecture_);
    const std::string_view gate_up_part = naming.grouped.gate_up, down_part = naming.grouped.down;
    if (gate_up_part.empty() || down_part.empty() || architecture_ == nullptr)
      fail(ErrorCode::NoSpelling, {}, "the naming {} has no keys for packed experts", naming.name);
    const auto has = [&](Role role) {
      return std::ranges::any_of(layer.experts,
                                 [&](const auto& each) { return each.second[index_of(role)].has_value(); });
    };
    const bool has_gate_up = has(Role::Gate) || has(Role::Up), has_down = has(Role::Down);
    if (answers_.program == "vllm" && has_gate_up != has_down)
      fail(ErrorCode::NoSpelling, {},
           "--to vllm: '{}' has factors for {} alone, and vLLM takes those of packed experts for both", layer.prefix,
           has_down ? "down_proj" : "gate_up_proj");
    const std::string gate_up = layer.prefix + print_part(gate_up_part, TensorKind::Weight, "");
    const std::string down = layer.prefix + print_part(down_part, TensorKind::Weight, "");
    const std::string module = down.substr(0, down.rfind('.'));
    if (has_gate_up) {
      add_parameter(gate_up_part);
      lay_gate_up(layer, gate_up, module + (has_down ? ".base_layer" : ""), fixed_glu(naming));
    }
    if (has_down) {
      add_parameter(down_part);
      lay_down(layer, down, module);
    }
  }

  void add_parameter(std::string_view part) {
    const std::string name = print_part(part, TensorKind::Weight, "");
    if (std::ranges::find(laid_.parameters, name) == laid_.parameters.end()) laid_.parameters.push_back(name);
  }

  const ExpertFactors* find(const Layer& layer, i64 expert, Role role) const {
    const auto found = layer.experts.find(expert);
    if (found == layer.experts.end() || !found->second[index_of(role)]) return nullptr;
    return &*found->second[index_of(role)];
  }

  /// The factors of packed experts that are to be, of `ranks` each.
  Factors packed_factors(const Factors& like, i64 ranks, bool is_gate_up) const {
    Factors packed{.dtype_a = like.stored_dtype_a(), .dtype_b = like.stored_dtype_b()};
    packed.experts = architecture_->num_experts;
    packed.rank = ranks;
    packed.inputs = is_gate_up ? architecture_->expert_hidden : architecture_->expert_width;
    packed.outputs = is_gate_up ? 2 * architecture_->expert_width : architecture_->expert_hidden;
    packed.is_expert_first = answers_.layout == AdapterLayout::Megatron;
    return packed;
  }

  /// Refuses what one module cannot have: several scales or dtypes, DoRA.
  void check_alike(const std::string& module, const ExpertFactors& one, const ExpertFactors& first) const {
    const std::string& name = tensors_[one.factors.a].name;
    if (one.magnitudes)
      fail(ErrorCode::NotSupported, {{}, name}, "'{}' has DoRA's magnitudes, and PEFT has no DoRA for packed experts",
           name);
    if (one.factors.scale != first.factors.scale)
      fail(
          ErrorCode::NotExact, {{}, name},
          "'{}' has the scale {} (lora_alpha and rank), and '{}' has {}: '{}' has one for all of them, and multiplying "
          "lora_B would round it",
          name, one.factors.scale, tensors_[first.factors.a].name, first.factors.scale, module);
    if (one.factors.stored_dtype_a() != first.factors.stored_dtype_a() ||
        one.factors.stored_dtype_b() != first.factors.stored_dtype_b())
      fail(ErrorCode::NotExact, {{}, name}, "'{}' has another dtype than '{}', and '{}' has one for all of them", name,
           tensors_[first.factors.a].name, module);
  }

  void add_module(const std::string& parameter, const std::string& module, const Factors& packed, double alpha,
                  std::vector<LaidTensor::Part> parts_a, std::vector<LaidTensor::Part> parts_b) {
    if (packed.is_expert_first) {
      add_tensor(fmt::format("{}{}{}", module, kMegatronIn, kWeight), packed.dtype_a,
                 {packed.experts, packed.rank, packed.inputs})
          .parts = std::move(parts_a);
      add_tensor(fmt::format("{}{}{}", module, kMegatronOut, kWeight), packed.dtype_b,
                 {packed.experts, packed.outputs, packed.rank})
          .parts = std::move(parts_b);
      laid_.modules.push_back({parameter, false, packed.rank, alpha});
      return;
    }
    const i64 stacked = packed.experts * packed.rank;
    add_tensor(fmt::format("{}{}.lora_A{}", kAdaptedModel, module, kWeight), packed.dtype_a, {stacked, packed.inputs})
        .parts = std::move(parts_a);
    add_tensor(fmt::format("{}{}.lora_B{}", kAdaptedModel, module, kWeight), packed.dtype_b, {packed.outputs, stacked})
        .parts = std::move(parts_b);
    laid_.modules.push_back({parameter, true, packed.rank, alpha});
  }

  [[noreturn]] void fail_rank(const Factors& factors, const std::string& why) const {
    throw Error(ErrorCode::NotExact,
                fmt::format("'{}': {}; --grow-rank writes more ranks, with zeros, which give the same products",
                            tensors_[factors.a].name, why),
                {}, tensors_[factors.a].name)
        .with_missing_options({"--grow-rank"});
  }

  void lay_down(const Layer& layer, const std::string& parameter, const std::string& module) {
    const ExpertFactors* first = nullptr;
    i64 ranks = 0;
    for (const auto& [expert, roles] : layer.experts)
      if (const auto& one = roles[index_of(Role::Down)]) {
        if (first == nullptr) first = &*one;
        check_alike(parameter, *one, *first);
        ranks = std::max(ranks, one->factors.ranks());
      }
    ranks = std::max(ranks, least_ranks_);
    const Factors packed = packed_factors(first->factors, ranks, false);
    std::vector<LaidTensor::Part> parts_a, parts_b;
    for (const auto& [expert, roles] : layer.experts)
      if (const auto& one = roles[index_of(Role::Down)]) {
        if (one->factors.ranks() != ranks && !answers_.grow_rank)
          fail_rank(one->factors,
                    fmt::format("it has rank {}, and another expert of the layer {}", one->factors.ranks(), ranks));
        Factors to = factors_of(packed, expert, Role::Down);
        to.used_ranks = one->factors.ranks();
        parts_a.push_back({matrix_of_a(one->factors), matrix_of_a(to)});
        parts_b.push_back({matrix_of_b(one->factors), matrix_of_b(to)});
      }
    const double alpha = alpha_for(first->alpha, first->factors.ranks(), ranks, first->factors, "zeros");
    add_module(parameter, module, packed, alpha, std::move(parts_a), std::move(parts_b));
  }

  /// Returns whether one A serves gate and up of every expert that has both.
  bool shares_a(const Layer& layer) const {
    return std::ranges::all_of(layer.experts, [&](const auto& each) {
      const auto& [gate, up, down] = each.second;
      return !gate || !up || are_equal(matrix_of_a(gate->factors), matrix_of_a(up->factors));
    });
  }

  /// The ranks that packed factors of a layer need.
  i64 packed_ranks(const Layer& layer) const {
    const bool shares = shares_a(layer);
    i64 most = 0;
    for (const auto& [expert, roles] : layer.experts) {
      // Clang 14 has no lambda that captures a structured binding.
      const auto ranks = [&roles = roles](Role role) {
        return roles[index_of(role)] ? roles[index_of(role)]->factors.ranks() : 0;
      };
      const i64 gate = ranks(Role::Gate), up = ranks(Role::Up);
      most = std::max({most, shares ? std::max(gate, up) : gate + up, ranks(Role::Down)});
    }
    return most;
  }

  void lay_gate_up(const Layer& layer, const std::string& parameter, const std::string& module, const Glu& order) {
    if (order.kind != Glu::Kind::Contiguous && order.kind != Glu::Kind::Interleaved)
      fail(ErrorCode::UnknownGlu, {},
           "nothing says in which order a model of this type has gate and up where its experts are packed; --experts "
           "indexed writes a pair of factors for each");
    const bool shares = shares_a(layer);
    const ExpertFactors* first = nullptr;
    i64 ranks = 0;
    for (const auto& [expert, roles] : layer.experts) {
      const auto& [gate, up, down] = roles;
      i64 own = 0;
      for (const auto* one : {&gate, &up})
        if (*one) {
          if (first == nullptr) first = &**one;
          check_alike(parameter, **one, *first);
          own = shares ? (*one)->factors.ranks() : own + (*one)->factors.ranks();
        }
      ranks = std::max(ranks, own);
      if (gate && up && !shares && !answers_.grow_rank)
        fail_rank(gate->factors,
                  fmt::format("gate and up have factors A of their own, and '{}' has one for both", parameter));
    }
    ranks = std::max(ranks, least_ranks_);
    Factors packed = packed_factors(first->factors, ranks, true);
    packed.block_rows = order.kind == Glu::Kind::Contiguous ? architecture_->expert_width : order.block_rows;
    if (architecture_->expert_width % packed.block_rows != 0)
      fail(ErrorCode::NotDivisible, {}, "'{}': {} rows of gate and up are not blocks of {}", parameter,
           architecture_->expert_width, packed.block_rows);
    std::vector<LaidTensor::Part> parts_a, parts_b;
    for (const auto& [expert, roles] : layer.experts) {
      i64 next = 0;
      for (const Role role : {Role::Gate, Role::Up}) {
        const ExpertFactors* const one = find(layer, expert, role);
        if (one == nullptr) continue;
        const Factors& from = one->factors;
        Factors to = factors_of(packed, expert, role);
        to.first_rank = next;
        to.used_ranks = from.ranks();
        const bool is_second = shares && role == Role::Up && find(layer, expert, Role::Gate) != nullptr;
        if (!is_second) parts_a.push_back({matrix_of_a(from), matrix_of_a(to)});
        parts_b.push_back({matrix_of_b(from), matrix_of_b(to)});
        if (!shares) next += from.ranks();
        if (shares && from.ranks() != ranks && !answers_.grow_rank)
          fail_rank(from, fmt::format("it has rank {}, and another expert of the layer {}", from.ranks(), ranks));
      }
    }
    const double alpha = alpha_for(first->alpha, first->factors.ranks(), ranks, first->factors, "zeros");
    add_module(parameter, module, packed, alpha, std::move(parts_a), std::move(parts_b));
  }

  const Source& adapter_;
  const std::vector<TensorRef>& tensors_;
  const AdapterConfig& config_;
  const Naming* naming_;
  const Architecture* architecture_;
  const LayAnswers& answers_;
  /// The naming of an adapter's own keys.
  const Naming* part_naming_ = nullptr;
  /// Ranks that all modules are to have at least.
  i64 least_ranks_ = 0;
  std::map<std::string, Layer> layers_;
  std::vector<AdaptedModule> plain_;
  LaidAdapter laid_;
  mutable Kept<KeptBytes> tensors_read_{kKeptBytes};
};

}  // namespace

LaidAdapter lay_out_adapter(const Source& adapter, const AdapterConfig& config,
                            const std::vector<AdaptedModule>& modules, const Naming* naming,
                            const Architecture* architecture, const LayAnswers& answers) {
  return AdapterLayer(adapter, config, naming, architecture, answers).run(modules);
}

}  // namespace glu_ckpt
