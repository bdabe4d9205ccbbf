#include "adapters/adapter_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "adapters/logical_adapter.hpp"
#include "core/fail.hpp"
#include "layout/adapter_names.hpp"
#include "layout/key_pattern.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kCanonicalIn = ".linear_in", kCanonicalOut = ".linear_out";
constexpr Glu kContiguous{Glu::Kind::Contiguous, 0};
std::string without_weight(std::string name) {
  if (name.ends_with(kWeightEnd)) name.resize(name.size() - kWeightEnd.size());
  return name;
}

class AdapterLayer {
 public:
  AdapterLayer(const Source& adapter, const AdapterConfig& config, const Naming* naming,
               const Architecture* architecture, const LayAnswers& answers)
      : elements_(adapter),
        tensors_(adapter.inventory().tensors),
        config_(config),
        naming_(naming),
        architecture_(architecture),
        answers_(answers) {}

  LaidAdapter run(const std::vector<AdaptedModule>& modules) {
    const bool is_apart = answers_.layout == AdapterLayout::Indexed || answers_.splits_gate_up;
    const bool parts_ranks = is_apart && !answers_.live_ranks;
    found_ = find_expert_factors(elements_, tensors_, {config_, naming_, architecture_}, modules, parts_ranks);
    if (answers_.layout == AdapterLayout::Megatron && answers_.grow_rank)
      for (const auto& [prefix, layer] : found_.layers) least_ranks_ = std::max(least_ranks_, packed_ranks(layer));
    for (auto& [prefix, layer] : found_.layers) switch (answers_.layout) {
        case AdapterLayout::Indexed: lay_indexed(layer); break;
        case AdapterLayout::Packed: lay_packed(layer); break;
        case AdapterLayout::Stacked: lay_stacked(layer); break;
        case AdapterLayout::Megatron: lay_megatron(layer); break;
      }
    if (answers_.layout == AdapterLayout::Megatron)
      check_megatron();
    else
      for (const AdaptedModule& module : found_.plain) lay_plain(module);
    if (answers_.program == "sglang") check_sglang();
    return std::move(laid_);
  }

 private:
  const Naming& indexed_naming() const {
    if (found_.naming == nullptr) fail(ErrorCode::NoMap, {}, "nothing says how the model's family spells its experts");
    return *found_.naming;
  }

  static std::string_view indexed_name(const Naming& naming, Role role) {
    return role == Role::Gate ? naming.indexed.gate : role == Role::Up ? naming.indexed.up : naming.indexed.down;
  }

  void lay_indexed(const ExpertLayer& layer) {
    const Naming& naming = indexed_naming();
    for (const auto& [expert, roles] : layer.experts)
      for (const Role role : kExpertRoles) {
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
    if (answers_.live_ranks && !magnitudes) live = elements_.live_ranks(factors);
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
    add_tensor(fmt::format("{}{}.lora_A{}", kAdaptedModel, module, kWeightEnd), alone.dtype_a, {rank, factors.inputs})
        .parts = std::move(parts_a);
    add_tensor(fmt::format("{}{}.lora_B{}", kAdaptedModel, module, kWeightEnd), alone.dtype_b, {factors.outputs, rank})
        .parts = std::move(parts_b);
    if (magnitudes) add_whole(fmt::format("{}{}{}", kAdaptedModel, module, kMagnitudes), *magnitudes);
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
    for (const auto& [prefix, layer] : found_.layers)
      if (name.starts_with(prefix + from)) return prefix + to + name.substr(prefix.size() + from.size());
    return name;
  }

  // ---- packed -----------------------------------------------------------------------------------

  void lay_megatron(const ExpertLayer& layer) {
    if (architecture_ == nullptr || !layer.prefix.starts_with(hub_layers(indexed_naming())))
      fail(ErrorCode::NoSpelling, {}, "--to megatron: nothing says how Megatron spells '{}'", layer.prefix);
    const std::string module = fmt::format("{}{}{}", kMegatronLayers,
                                           layer.prefix.substr(hub_layers(indexed_naming()).size()), kMegatronExperts);
    const bool has_gate_up = layer.has(Role::Gate) || layer.has(Role::Up);
    if (has_gate_up && answers_.splits_gate_up)
      for (const auto& [role, word] : {std::pair(Role::Gate, kMegatronGate), std::pair(Role::Up, kMegatronUp)})
        lay_role(layer, role, fmt::format("{}1{}", module, word), fmt::format("{}1{}", module, word));
    if (has_gate_up && !answers_.splits_gate_up) lay_gate_up(layer, module + "1", module + "1", kContiguous);
    lay_role(layer, Role::Down, module + "2", module + "2");
  }

  /// Megatron-Bridge has one rank and one alpha for all modules.
  void check_megatron() const {
    for (const AdaptedModule& module : found_.plain)
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

  /// SGLang multiplies all products of an adapter by lora_alpha / r, and reads no other field about them.
  void check_sglang() {
    if (laid_.modules.empty()) return;
    const auto scale_of = [&](const LaidModule& module, bool rank_stabilized) {
      AdapterConfig own;
      own.rank = module.rank;
      own.alpha = module.alpha;
      own.rank_stabilized = rank_stabilized;
      return own.scale_of("");
    };
    const LaidModule first = laid_.modules.front();
    for (LaidModule& module : laid_.modules) {
      const float scale = scale_of(module, config_.rank_stabilized);
      if (module.rank != first.rank || scale != scale_of(first, config_.rank_stabilized))
        fail(ErrorCode::NotExact, {},
             "--to sglang: '{}' has rank {} and scale {}, and '{}' {} and {}: SGLang has one of each for all modules, "
             "whatever rank_pattern and alpha_pattern say; vLLM reads both, and --merge adds the adapter to its model",
             module.name, module.rank, scale, first.name, first.rank, scale_of(first, config_.rank_stabilized));
    }
    if (!config_.rank_stabilized) return;
    const auto rank = static_cast<double>(first.rank);
    const float scale = scale_of(first, true);
    for (LaidModule& module : laid_.modules) module.alpha = first.alpha / std::sqrt(rank) * rank;
    laid_.forgets_rslora = true;
    if (scale_of(laid_.modules.front(), false) != scale)
      fail(ErrorCode::NotExact, {},
           "--to sglang: SGLang does not read use_rslora, and no lora_alpha gives its scale {} to "
           "the bit",
           scale);
  }

  void lay_packed(const ExpertLayer& layer) {
    const Naming& naming = *packed_naming(indexed_naming(), architecture_);
    const std::string_view gate_up_part = naming.grouped.gate_up, down_part = naming.grouped.down;
    if (gate_up_part.empty() || down_part.empty() || architecture_ == nullptr)
      fail(ErrorCode::NoSpelling, {}, "the naming {} has no keys for packed experts", naming.name);
    const bool has_gate_up = layer.has(Role::Gate) || layer.has(Role::Up), has_down = layer.has(Role::Down);
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
      lay_role(layer, Role::Down, down, module);
    }
  }

  /// An axis of experts in front, of one where all share a factor: the outer one of both matrices.
  void lay_stacked(const ExpertLayer& layer) {
    const Naming& naming = *packed_naming(indexed_naming(), architecture_);
    if (architecture_ == nullptr || naming.grouped.down.empty())
      fail(ErrorCode::NoSpelling, {}, "the naming {} has no keys for packed experts", naming.name);
    const std::string down = layer.prefix + print_part(naming.grouped.down, TensorKind::Weight, "");
    const std::string experts = down.substr(0, down.rfind('.') + 1);
    const auto lay = [&](Role role, const char* word) { lay_role(layer, role, experts + word, experts + word); };
    if (answers_.splits_gate_up) {
      lay(Role::Gate, "w1");
      lay(Role::Up, "w3");
      lay(Role::Down, "w2");
      return;
    }
    if (fixed_glu(naming).kind == Glu::Kind::Interleaved)
      fail(
          ErrorCode::UnknownGlu, {},
          "'{}gate_up_proj': nothing says whether {} reads its rows as the model has them, gate's and up's in turn, or "
          "one after the other; --to {} without --experts shared writes a pair of factors for each",
          experts, answers_.program, answers_.program);
    if (layer.has(Role::Gate) || layer.has(Role::Up))
      lay_gate_up(layer, experts + "gate_up_proj", experts + "gate_up_proj", kContiguous);
    lay(Role::Down, "down_proj");
  }

  void add_parameter(std::string_view part) {
    const std::string name = print_part(part, TensorKind::Weight, "");
    if (std::ranges::find(laid_.parameters, name) == laid_.parameters.end()) laid_.parameters.push_back(name);
  }

  bool is_expert_first() const {
    return answers_.layout == AdapterLayout::Megatron || answers_.layout == AdapterLayout::Stacked;
  }

  /// The factors of packed experts that are to be, of `ranks` each.
  Factors packed_factors(const Factors& like, i64 ranks, Role role) const {
    Factors packed{.dtype_a = like.stored_dtype_a(), .dtype_b = like.stored_dtype_b()};
    const i64 hidden = architecture_->expert_hidden, width = architecture_->expert_width;
    packed.experts = architecture_->num_experts;
    packed.rank = ranks;
    packed.inputs = role == Role::Down ? width : hidden;
    packed.outputs = role == Role::Down ? hidden : role == Role::GateUp ? 2 * width : width;
    packed.is_expert_first = is_expert_first();
    // Megatron-Bridge shares both, others the one on the outside of an expert.
    const bool is_both = answers_.layout == AdapterLayout::Megatron;
    packed.shares_a = answers_.shares && (is_both || role != Role::Down);
    packed.shares_b = answers_.shares && (is_both || role == Role::Down);
    packed.is_by_expert = answers_.files == PackedFiles::ByExpert;
    // PEFT took no axes for one another where the model has experts [in, out].
    packed.is_turned = answers_.files == PackedFiles::Peft018 && indexed_naming().axes == Axes::OutIn;
    if (packed.is_turned) std::swap(packed.dtype_a, packed.dtype_b);
    return packed;
  }

  /// Adds what one expert has to parts that all of them share, or refuses it where it differs.
  void add_part(std::vector<LaidTensor::Part>& parts, bool is_shared, Matrix from, i64 expert, const Matrix& to) const {
    from.expert = expert;
    const auto first = std::ranges::find_if(
        parts, [&](const LaidTensor::Part& part) { return is_shared && part.to.place.offset == to.place.offset; });
    if (first == parts.end()) return parts.push_back({from, to});
    if (!elements_.are_equal(first->from, from))
      fail(ErrorCode::NotExact, {{}, tensors_[from.tensor].name},
           "'{}' (expert {}) differs from '{}' (expert {}), and --experts shared has one for all experts; without it "
           "each "
           "has its own",
           tensors_[from.tensor].name, expert, tensors_[first->from.tensor].name, first->from.expert);
  }

  /// An expert without factors has products of zero, which a pair that all share cannot give.
  void check_shared(const ExpertLayer& layer, Role role, const Factors& packed) const {
    if (!packed.shares_a || !packed.shares_b) return;
    for (i64 expert = 0; expert < packed.experts; ++expert)
      if (layer.find(expert, role) == nullptr)
        fail(ErrorCode::NotExact, {}, "'{}': expert {} has no factors of {}, and --experts shared has one pair for all",
             layer.prefix, expert, to_string(role));
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

  static std::string adapted(const std::string& module, std::string_view factor) {
    return fmt::format("{}{}.{}", kAdaptedModel, module, factor);
  }

  void add_module(const std::string& parameter, const std::string& module, const Factors& packed, double alpha,
                  std::vector<LaidTensor::Part> parts_a, std::vector<LaidTensor::Part> parts_b) {
    if (packed.is_expert_first) {
      const bool is_bridge = answers_.layout == AdapterLayout::Megatron;
      std::vector<i64> shape_a = {packed.shares_a ? 1 : packed.experts, packed.rank, packed.inputs};
      std::vector<i64> shape_b = {packed.shares_b ? 1 : packed.experts, packed.outputs, packed.rank};
      // Megatron-Bridge's pair for all experts is like a linear layer's.
      if (is_bridge && packed.shares_a)
        for (std::vector<i64>* shape : {&shape_a, &shape_b}) shape->erase(shape->begin());
      const bool is_canonical = module.ends_with(kMegatronGate) || module.ends_with(kMegatronUp);
      const std::string_view in = is_canonical ? kCanonicalIn : kMegatronIn;
      const std::string_view out = is_canonical ? kCanonicalOut : kMegatronOut;
      const std::string name_a = is_bridge ? fmt::format("{}{}", module, in) : adapted(module, "lora_A");
      const std::string name_b = is_bridge ? fmt::format("{}{}", module, out) : adapted(module, "lora_B");
      add_tensor(name_a + std::string(kWeightEnd), packed.dtype_a, shape_a).parts = std::move(parts_a);
      add_tensor(name_b + std::string(kWeightEnd), packed.dtype_b, shape_b).parts = std::move(parts_b);
      laid_.modules.push_back({parameter, false, packed.rank, alpha});
      return;
    }
    const i64 stacked = packed.experts * packed.rank;
    i64 columns = packed.inputs, rows = packed.outputs;
    if (packed.is_turned) {
      std::swap(columns, rows);
      parts_a.swap(parts_b);
    }
    add_tensor(fmt::format("{}{}.lora_A{}", kAdaptedModel, module, kWeightEnd), packed.dtype_a, {stacked, columns})
        .parts = std::move(parts_a);
    add_tensor(fmt::format("{}{}.lora_B{}", kAdaptedModel, module, kWeightEnd), packed.dtype_b, {rows, stacked}).parts =
        std::move(parts_b);
    laid_.modules.push_back({parameter, true, packed.rank, alpha});
  }

  [[noreturn]] void fail_rank(const Factors& factors, const std::string& why) const {
    throw Error(ErrorCode::NotExact,
                fmt::format("'{}': {}; --grow-rank writes more ranks, with zeros, which give the same products",
                            tensors_[factors.a].name, why),
                {}, tensors_[factors.a].name)
        .with_missing_options({"--grow-rank"});
  }

  /// Lays one of an expert's matrices out by itself.
  void lay_role(const ExpertLayer& layer, Role role, const std::string& parameter, const std::string& module) {
    if (!layer.has(role)) return;
    const ExpertFactors* first = nullptr;
    i64 ranks = 0;
    for (const auto& [expert, roles] : layer.experts)
      if (const auto& one = roles[index_of(role)]) {
        if (first == nullptr) first = &*one;
        check_alike(parameter, *one, *first);
        ranks = std::max(ranks, one->factors.ranks());
      }
    ranks = std::max(ranks, least_ranks_);
    const Factors packed = packed_factors(first->factors, ranks, role);
    check_shared(layer, role, packed);
    std::vector<LaidTensor::Part> parts_a, parts_b;
    for (const auto& [expert, roles] : layer.experts)
      if (const auto& one = roles[index_of(role)]) {
        if (one->factors.ranks() != ranks && !answers_.grow_rank)
          fail_rank(one->factors,
                    fmt::format("it has rank {}, and another expert of the layer {}", one->factors.ranks(), ranks));
        Factors to = factors_of(packed, expert, role);
        to.used_ranks = one->factors.ranks();
        add_part(parts_a, packed.shares_a, matrix_of_a(one->factors), expert, matrix_of_a(to));
        add_part(parts_b, packed.shares_b, matrix_of_b(one->factors), expert, matrix_of_b(to));
      }
    const double alpha = scaled_alpha(*first, ranks);
    add_module(parameter, module, packed, alpha, std::move(parts_a), std::move(parts_b));
  }

  /// The alpha of a module whose first factors get zeros up to so many ranks.
  double scaled_alpha(const ExpertFactors& first, i64 ranks) const {
    return alpha_for(config_, first.alpha, first.factors.ranks(), ranks, first.factors, "zeros",
                     tensors_[first.factors.a].name);
  }

  /// Returns whether one A serves gate and up of every expert that has both.
  bool shares_a(const ExpertLayer& layer) const {
    return std::ranges::all_of(layer.experts, [&](const auto& each) {
      const auto& [gate, up, down] = each.second;
      return !gate || !up || elements_.are_equal(matrix_of_a(gate->factors), matrix_of_a(up->factors));
    });
  }

  /// The ranks that packed factors of a layer need.
  i64 packed_ranks(const ExpertLayer& layer) const {
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

  /// Refuses an A with a NaN or an infinity. An A in a layout that has one A for gate and up meets zeros in the other
  /// half's B, and zero times NaN is NaN.
  void check_finite(const Factors& factors, const std::string& parameter) const {
    const std::vector<double> sums = elements_.magnitudes(matrix_of_a(factors), false);
    const auto bad = std::ranges::find_if(sums, [](double sum) { return !std::isfinite(sum); });
    if (bad == sums.end()) return;
    const std::string& name = tensors_[factors.a].name;
    fail(ErrorCode::NotExact, {{}, name},
         "'{}': a number of rank {} is NaN or infinite, and in '{}' the other half's zeros would make NaN of it. Find "
         "out what wrote it; --experts indexed writes a pair of factors for each",
         name, bad - sums.begin(), parameter);
  }

  void lay_gate_up(const ExpertLayer& layer, const std::string& parameter, const std::string& module,
                   const Glu& order) {
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
    Factors packed = packed_factors(first->factors, ranks, Role::GateUp);
    for (const Role role : {Role::Gate, Role::Up})
      if (layer.has(role)) check_shared(layer, role, packed);
    packed.block_rows = order.kind == Glu::Kind::Contiguous ? architecture_->expert_width : order.block_rows;
    if (architecture_->expert_width % packed.block_rows != 0)
      fail(ErrorCode::NotDivisible, {}, "'{}': {} rows of gate and up are not blocks of {}", parameter,
           architecture_->expert_width, packed.block_rows);
    std::vector<LaidTensor::Part> parts_a, parts_b;
    for (const auto& [expert, roles] : layer.experts) {
      i64 next = 0;
      for (const Role role : {Role::Gate, Role::Up}) {
        const ExpertFactors* const one = layer.find(expert, role);
        if (one == nullptr) continue;
        const Factors& from = one->factors;
        Factors to = factors_of(packed, expert, role);
        to.first_rank = next;
        to.used_ranks = from.ranks();
        if (!shares || layer.find(expert, role == Role::Gate ? Role::Up : Role::Gate) == nullptr)
          check_finite(from, parameter);
        const bool is_second = shares && role == Role::Up && layer.find(expert, Role::Gate) != nullptr;
        if (!is_second) add_part(parts_a, packed.shares_a, matrix_of_a(one->factors), expert, matrix_of_a(to));
        add_part(parts_b, packed.shares_b, matrix_of_b(one->factors), expert, matrix_of_b(to));
        if (!shares) next += from.ranks();
        if (shares && from.ranks() != ranks && !answers_.grow_rank)
          fail_rank(from, fmt::format("it has rank {}, and another expert of the layer {}", from.ranks(), ranks));
      }
    }
    const double alpha = scaled_alpha(*first, ranks);
    add_module(parameter, module, packed, alpha, std::move(parts_a), std::move(parts_b));
  }

  FactorElements elements_;
  const std::vector<TensorRef>& tensors_;
  const AdapterConfig& config_;
  const Naming* naming_;
  const Architecture* architecture_;
  const LayAnswers& answers_;
  /// Ranks that all modules are to have at least.
  i64 least_ranks_ = 0;
  LogicalAdapter found_;
  LaidAdapter laid_;
};

}  // namespace

LaidAdapter lay_out_adapter(const Source& adapter, const AdapterConfig& config,
                            const std::vector<AdaptedModule>& modules, const Naming* naming,
                            const Architecture* architecture, const LayAnswers& answers) {
  return AdapterLayer(adapter, config, naming, architecture, answers).run(modules);
}

}  // namespace glu_ckpt
