#include "arch/find_flaws.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "arch/dense_layout.hpp"
#include "core/parse_number.hpp"
#include "layout/bare_codes.hpp"
#include "layout/expert_like_names.hpp"

namespace glu_ckpt {
namespace {

/// Flaws beyond these get no hint at a tensor that may be meant, for which all names are searched.
constexpr std::size_t kHinted = 16;

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

class FlawFinder {
 public:
  FlawFinder(const Inventory& inventory, const Recognition& model, const StandIns& stand_ins)
      : inventory_(inventory),
        model_(model),
        stand_ins_(stand_ins),
        architecture_(*model.architecture),
        naming_(model.dense_naming != nullptr ? *model.dense_naming : model.architecture->family->naming),
        root_(model.dense_naming != nullptr ? model.dense_root : model.architecture->family->root) {
    for (const DenseMatrix& matrix : model.dense) {
      layers_[{matrix.stack, matrix.layer}].insert({matrix.role, matrix.matrix.kind});
      read_.insert(matrix.matrix.tensor);
    }
    for (const auto& [part, tensor] : stand_ins)
      if (part.first.layer != kAllLayers)
        layers_[part.first];
      else
        for (i64 layer = 0; layer < architecture_.layers; ++layer) layers_[{part.first.stack, layer}];
    for (const ExpertBlock& block : model.blocks)
      if (!block.is_optimizer_state() && (block.stack == "decoder" || block.stack == "mtp")) {
        layers_[{block.stack == "mtp" ? "mtp" : "decoder", block.layer}];
        experts_.emplace(block.stack, block.layer, block.set);
      }
    for_each_row(architecture_.family->naming, [&](const DenseRow& row) { has_mtp_ |= row.place == Place::Mtp; });
  }

  std::vector<ModelFlaw> find() {
    check_layers();
    check_mtp_layers();
    check_expert_layers();
    check_experts();
    layers_[{}];
    for (const auto& [id, parts] : layers_) {
      const bool is_known = id.stack == "mtp" ? has_mtp_ : id.layer < architecture_.layers;
      if (is_known) check_complete(id, parts);
    }
    check_declared_biases();
    check_unread();
    // Like tensors that no program reads, these say that the model may be another than programs take it for.
    for (const std::string& text : architecture_.contradictions) add_unread(ErrorCode::ConfigJson, {}, text);
    return std::move(flaws_);
  }

 private:
  using Parts = std::set<PartId>;

  const std::string& name_of(std::size_t tensor) const { return inventory_.tensors[tensor].name; }

  template <typename... Args>
  void add(ErrorCode code, std::string tensor, fmt::format_string<Args...> text, Args&&... args) {
    flaws_.push_back(
        {ModelFlaw::Kind::Broken, code, std::move(tensor), fmt::format(text, std::forward<Args>(args)...)});
  }

  /// Layers that are missing one behind the other are one flaw.
  void check_layers() {
    for (i64 layer = 0; layer < architecture_.layers; ++layer) {
      if (layers_.contains({"decoder", layer})) continue;
      i64 last = layer;
      while (last + 1 < architecture_.layers && !layers_.contains({"decoder", last + 1})) ++last;
      const std::string which = last == layer ? fmt::format("layer {} is missing", layer)
                                              : fmt::format("layers {} to {} are missing", layer, last);
      add(ErrorCode::ModelIncomplete, {}, "{}: config.json says num_hidden_layers {}, and no tensor of {} is there",
          which, architecture_.layers, last == layer ? "that layer" : "those layers");
      layer = last;
    }
  }

  /// A configuration promises MTP layers that many programs leave out, but none leaves out some of them.
  void check_mtp_layers() {
    i64 found = 0;
    for (const auto& [id, parts] : layers_) {
      if (id.stack != "mtp") continue;
      if (has_mtp_ && id.layer != found)
        add(ErrorCode::ModelIncomplete, {}, "MTP layer {} is missing, but MTP layer {} is there", found, id.layer);
      found = id.layer + 1;
    }
    const i64 said = architecture_.mtp_layers * architecture_.mtp_depth();
    if (has_mtp_ && found > 0 && found < said)
      add(ErrorCode::ModelIncomplete, {}, "MTP layer {} is missing: config.json says that there are {} ({})", found,
          said, architecture_.mtp_field);
    // Families whose MTP layers have names of their own need no field that counts them.
    const bool by_name = !architecture_.family->naming.mtp_layers.empty() && !architecture_.says_mtp_layers;
    if (found <= std::max<i64>(said, 0) || (by_name && found == 1)) return;
    std::string text = fmt::format(
        "the checkpoint has {} MTP layer{}, but config.json {}; programs do not expect '{}' then. Set {} to {}", found,
        found == 1 ? "" : "s",
        architecture_.says_mtp_layers ? fmt::format("says {} ({})", std::max<i64>(said, 0), architecture_.mtp_field)
                                      : fmt::format("does not say so (no number in {})", architecture_.mtp_field),
        layer_prefix({"mtp", std::max<i64>(said, 0)}), architecture_.mtp_field, found);
    if (!has_mtp_)
      text =
          fmt::format("'{}' has experts, but config.json says num_hidden_layers {}, and a {} model has no MTP layers",
                      layer_prefix({"mtp", 0}), architecture_.layers, architecture_.model_type);
    flaws_.push_back({ModelFlaw::Kind::ExtraMtp, ErrorCode::ModelShape, {}, std::move(text)});
  }

  std::string layer_prefix(const LayerId& id) const {
    return print_layer_prefix(naming_, root_, id.stack, id.layer, architecture_);
  }

  LayerKind kind_of(const LayerId& id) const { return architecture_.kind_of(id.stack, id.layer); }

  void check_expert_layers() {
    for (const auto& [id, parts] : layers_) {
      if (id.stack.empty() || (id.stack == "decoder" && id.layer >= architecture_.layers) ||
          (id.stack == "mtp" && !has_mtp_) || kind_of(id).mlp != Mlp::Experts)
        continue;
      if (!experts_.contains({id.stack, id.layer, ExpertSet::Routed}))
        add(ErrorCode::ModelIncomplete, {}, "'{}' has no experts, but config.json makes it a MoE layer{}",
            layer_prefix(id),
            flaws_.size() < kHinted ? foreign_experts_text(inventory_, architecture_.num_experts, layer_prefix(id))
                                    : std::string());
      if (architecture_.shared_width > 0 && !experts_.contains({id.stack, id.layer, ExpertSet::Shared}))
        add(ErrorCode::ModelIncomplete, {}, "'{}' has no shared expert, but config.json says {} {}", layer_prefix(id),
            architecture_.shared_width_field, architecture_.shared_width);
    }
  }

  void check_experts() {
    for (const ExpertBlock& block : model_.blocks) {
      if (block.is_optimizer_state()) continue;
      const bool routed = block.set == ExpertSet::Routed;
      const i64 width = routed ? architecture_.expert_width : architecture_.shared_width;
      const std::string& name = name_of(block.matrices.front().tensor);
      if (routed && block.num_experts != architecture_.num_experts)
        add(ErrorCode::ModelShape, name, "layer {} has {} experts, but config.json says {}", layer_label(block),
            block.num_experts, architecture_.num_experts);
      const bool says_width = width > 0 || routed || architecture_.says_shared_width;
      const std::string_view field = routed ? architecture_.expert_width_field : architecture_.shared_width_field;
      const i64 hidden = routed ? architecture_.expert_hidden : architecture_.extent(Dim::Hidden);
      if (block.hidden_size != hidden || (says_width && block.intermediate_size != width))
        add(ErrorCode::ModelShape, name, "'{}': layer {}'s {} experts map {} to {}, but config.json says {} {} and {}",
            name, layer_label(block), to_string(block.set), block.hidden_size, block.intermediate_size,
            routed ? architecture_.expert_hidden_field : "hidden_size", hidden,
            width > 0 || !routed ? fmt::format("{} {}", field, width) : fmt::format("no {} above 0", field));
      check_gate(block);
      check_expert_biases(block);
    }
  }

  /// Experts without a gate are a form of their own, so a gate that was lost looks like one that never was.
  void check_gate(const ExpertBlock& block) {
    const bool gated = block.glu.kind != Glu::Kind::None;
    if (gated != architecture_.family->ungated) return;
    const std::string& name = name_of(block.matrices.front().tensor);
    if (gated)
      return add(ErrorCode::ModelShape, name,
                 "'{}' is there, but the experts of a {} model have no gate, and layer {}'s {} experts have one", name,
                 architecture_.model_type, layer_label(block), to_string(block.set));
    add(ErrorCode::ModelIncomplete, name,
        "'{}' is there, but layer {}'s {} experts have no gate, which those of a {} model have", name,
        layer_label(block), to_string(block.set), architecture_.model_type);
  }

  void check_expert_biases(const ExpertBlock& block) {
    if (!architecture_.family->biases_everywhere) {
      const auto bias = std::ranges::find(block.matrices, TensorKind::Bias, &Matrix::kind);
      if (bias != block.matrices.end())
        add(ErrorCode::ModelShape, name_of(bias->tensor),
            "'{}' is there, but the experts of a {} model have no biases: programs that load the model leave it out",
            name_of(bias->tensor), architecture_.model_type);
      return;
    }
    for (const Matrix& matrix : block.matrices) {
      if (matrix.kind != TensorKind::Weight || matrix.expert > 0) continue;
      const auto is_its_bias = [&](const Matrix& other) {
        return other.kind == TensorKind::Bias && other.role == matrix.role;
      };
      if (std::ranges::none_of(block.matrices, is_its_bias))
        add(ErrorCode::ModelIncomplete, name_of(matrix.tensor),
            "'{}' is there, but layer {}'s {} experts have no {} biases, which a {} model has", name_of(matrix.tensor),
            layer_label(block), to_string(block.set), to_string(matrix.role), architecture_.model_type);
    }
  }

  /// Everything that the family's own checkpoints have must be there, whatever naming this one is in. What only some
  /// models have is in all layers of a kind or in none.
  void check_complete(const LayerId& id, const Parts& parts) {
    for_each_row(architecture_.family->naming, [&](const DenseRow& row) {
      if (row.former || row.copy || !is_in(row, id, architecture_)) return;
      for (const DenseRole role : row.all_roles()) {
        if (role == DenseRole::Head && architecture_.tied) continue;
        const PartId part{role, TensorKind::Weight};
        const bool present = is_there(id, parts, part);
        const bool needed = !row.optional || (role == DenseRole::CorrectionBias && architecture_.corrected_router) ||
                            (is_head_norm(role) && architecture_.qk_norms == true);
        if (needed && !present) add_missing(id, part);
        if (present && is_head_norm(role) && architecture_.qk_norms == false) {
          const std::string name = key_of(id, part);
          add(ErrorCode::ModelShape, name, "'{}' is there, but config.json says that use_qk_norm is false", name);
        }
        if (!needed) check_same_everywhere(id, part, present);
        if (row.has_kinds()) check_bias(id, role, parts, row.biased);
      }
    });
  }

  /// A tensor that stands in for a part fills its place, though nothing moves it.
  bool is_there(const LayerId& id, const Parts& parts, const PartId& part) {
    if (parts.contains(part)) return true;
    auto found = stand_ins_.find({id, part});
    if (found == stand_ins_.end()) found = stand_ins_.find({{id.stack, kAllLayers}, part});
    if (found == stand_ins_.end()) return false;
    const TensorRef& tensor = inventory_.tensors[found->second];
    const bool is_misfit =
        std::ranges::find(model_.misfits, found->second, &DenseMisfit::tensor) != model_.misfits.end();
    if (!is_misfit)
      flaws_.push_back({ModelFlaw::Kind::NotMoved, ErrorCode::ModelIncomplete, tensor.name,
                        fmt::format("'{}' is {} {}: it holds codes of {}{} of a {} model, and codes outside of the "
                                    "experts have no place in another naming",
                                    tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), of_layer(id),
                                    to_string(part.role), architecture_.model_type)});
    return true;
  }

  static bool is_head_norm(DenseRole role) { return role == DenseRole::QNorm || role == DenseRole::KNorm; }

  static bool has_field_of_bias(DenseRole role) {
    return role == DenseRole::Q || role == DenseRole::K || role == DenseRole::V;
  }

  void check_bias(const LayerId& id, DenseRole role, const Parts& parts, bool biased) {
    const PartId bias{role, TensorKind::Bias};
    const bool present = is_there(id, parts, bias), by_field = has_field_of_bias(role);
    const bool everywhere = architecture_.family->biases_everywhere;
    if (!present && everywhere && by_field && !architecture_.attention_bias) {
      flaws_.push_back(
          {ModelFlaw::Kind::NotMoved,
           ErrorCode::NoMap,
           {},
           fmt::format("config.json says that {} is false, and the attention of this {} model has no biases, but its "
                       "experts have: Megatron-Core's GPTModel has biases in all linear layers or in none, so there is "
                       "no map of such models",
                       architecture_.attention_bias_field, architecture_.model_type)});
      return;
    }
    if (!present && (everywhere || biased || (by_field && architecture_.attention_bias))) return add_missing(id, bias);
    if (present && by_field && !architecture_.attention_bias) {
      const std::string name = key_of(id, bias);
      const std::string_view field = architecture_.attention_bias_field;
      add(ErrorCode::ModelShape, name, "'{}' is there, but {}", name,
          !field.empty() ? fmt::format("config.json says that {} is false", field)
                         : fmt::format("programs leave out the biases of a {} model's attention where config.json does "
                                       "not say that {} is true",
                                       architecture_.model_type, architecture_.family->own_word("attention_bias")));
    }
    if (present && role == DenseRole::AttentionOut && !everywhere) {
      const std::string name = key_of(id, bias);
      flaws_.push_back({ModelFlaw::Kind::NotMoved, ErrorCode::NoMap, name,
                        fmt::format("'{}': Megatron-Core's GPTModel has a bias there only where all linear layers have "
                                    "one, so there is no map of {} models with it",
                                    name, architecture_.model_type)});
    }
    check_same_everywhere(id, bias, present);
  }

  void check_same_everywhere(const LayerId& id, const PartId& part, bool present) {
    const auto [first, is_new] = optional_.emplace(part, std::pair(id, present));
    if (is_new || first->second.second == present) return;
    add_missing(present ? first->second.first : id, part);
  }

  /// A bias that config.json declares, of a linear layer whose weight is there.
  void check_declared_biases() {
    if (architecture_.declared_biases.empty() || &naming_ != &architecture_.family->naming) return;
    std::unordered_set<std::string_view> names;
    for (const TensorRef& tensor : inventory_.tensors) names.insert(tensor.name);
    for (i64 layer = 0; layer < architecture_.layers; ++layer)
      for (const DeclaredBias& declared : architecture_.declared_biases) {
        const std::string linear = layer_prefix({"decoder", layer}) + std::string(declared.linear);
        if (names.contains(linear + ".weight") && !names.contains(linear + ".bias"))
          add(ErrorCode::ModelIncomplete, linear + ".bias", "'{}.bias' is missing: config.json says that {} is true",
              linear, declared.field);
      }
  }

  /// Tensors that no program reads, and that say that what it reads is not the model.
  void check_unread() {
    std::size_t factors = 0, beyond = 0, strange = 0, unnamed = 0;
    const std::string *first = nullptr, *first_beyond = nullptr, *first_strange = nullptr;
    for (const std::size_t index : read_) read_names_.insert(name_of(index));
    for (const TensorCopy& copy : model_.copies) read_.insert(copy.tensor);
    for (const IdleTensor& idle : model_.idle) read_.insert(idle.tensor);
    for (const auto& [part, tensor] : stand_ins_) read_.insert(tensor);
    read_.insert(model_.unexplained.begin(), model_.unexplained.end());
    const std::set<std::string_view> coded = coded_modules();
    for (const std::size_t index : model_.others) {
      if (read_.contains(index)) continue;
      const std::string& name = name_of(index);
      if (name.find(".lora_") != name.npos && factors++ == 0) first = &name;
      if (is_of_later_layer(name) && beyond++ == 0) first_beyond = &name;
      if (!is_part_of_codes(name, coded) && is_strange(index)) {
        if (strange++ == 0) first_strange = &name;
        unnamed += name.ends_with(kWeight) || name.ends_with(kBias) ? 0 : 1;
      }
      if (const auto layer = layer_of_mtp(name))
        add_unread(
            ErrorCode::ModelShape, name,
            fmt::format("'{}' is a tensor of an MTP layer, but config.json says num_hidden_layers {}, which makes "
                        "layer {} one of the model's own",
                        name, architecture_.layers, *layer));
    }
    const auto is_extra_mtp = [](const ModelFlaw& flaw) { return flaw.kind == ModelFlaw::Kind::ExtraMtp; };
    if (beyond > 0 && std::ranges::none_of(flaws_, is_extra_mtp))
      add_unread(ErrorCode::ModelShape, *first_beyond,
                 fmt::format("'{}'{} of a layer that config.json does not count (num_hidden_layers {}): programs that "
                             "load the model leave it out",
                             *first_beyond, beyond == 1 ? " is" : fmt::format(" and {} more are", beyond - 1),
                             architecture_.layers));
    if (strange > 0)
      add_unread(
          ErrorCode::UnknownTensor, *first_strange,
          fmt::format("'{}'{} that a {} model is not known to have: programs that load the model leave {} out",
                      *first_strange,
                      strange > 1 ? fmt::format(" and {} more are {}", strange - 1, unnamed > 0 ? "tensors" : "weights")
                      : first_strange->ends_with(kBias)   ? " is a bias"
                      : first_strange->ends_with(kWeight) ? " is a weight"
                                                          : " is a tensor",
                      architecture_.model_type, strange == 1 ? "it" : "them"));
    if (factors > 0)
      add_unread(
          ErrorCode::ModelIncomplete, *first,
          fmt::format("'{}'{} of an adapter (LoRA) that was not merged: programs that load the model do not read "
                      "it, and compute something else; merge it first",
                      *first, factors == 1 ? " is" : fmt::format(" and {} more are", factors - 1)));
  }

  /// The modules whose weights the model has as codes: "model.layers.0.self_attn.q_proj".
  std::set<std::string_view> coded_modules() const {
    std::set<std::string_view> modules;
    const auto add = [&](std::size_t index) {
      const std::string_view name = name_of(index);
      if (holds_codes(inventory_.tensors[index].dtype)) modules.insert(name.substr(0, name.rfind('.')));
    };
    for (const std::size_t index : read_) add(index);
    for (const ExpertBlock& block : model_.blocks)
      for (const Matrix& matrix : block.matrices) add(matrix.tensor);
    return modules;
  }

  /// Says whether a tensor may belong to weights that are codes: it lies in a module that has some, or is a scale or a
  /// zero point of a model that has some. src/quant judges those.
  static bool is_part_of_codes(std::string_view name, const std::set<std::string_view>& coded) {
    if (coded.empty()) return false;
    for (std::size_t dot = name.rfind('.'); dot != name.npos && dot > 0; dot = name.rfind('.', dot - 1))
      if (coded.contains(name.substr(0, dot))) return true;
    const std::string_view last = name.substr(name.rfind('.') + 1);
    return last.find("scale") != last.npos || last.find("zero") != last.npos;
  }

  void add_unread(ErrorCode code, const std::string& tensor, std::string text) {
    flaws_.push_back({ModelFlaw::Kind::Unread, code, tensor, std::move(text)});
  }

  /// The number of the main stack's layer in which a tensor lies.
  std::optional<i64> layer_of(const std::string& name) const {
    const std::string first = layer_prefix({"decoder", 0}), stem = first.substr(0, first.size() - 2);
    if (!name.starts_with(stem)) return std::nullopt;
    const std::size_t end = name.find_first_not_of("0123456789", stem.size());
    if (end == name.npos || name[end] != '.') return std::nullopt;
    return parse_index(std::string_view(name).substr(stem.size(), end - stem.size()));
  }

  /// Returns whether it lies in a layer that is not counted. MTP's may be numbered on from there.
  bool is_of_later_layer(const std::string& name) const {
    return !(has_mtp_ && naming_.mtp_layers.empty()) && layer_of(name) >= architecture_.layers;
  }

  /// Returns whether it lies in a counted layer, under the family's own names, and no row reads it, or is the bias of a
  /// weight that has none. Beside the layers there may be other heads, but nothing that is no
  /// weight, in families that are never inside another model.
  bool is_strange(std::size_t index) const {
    const std::string& name = name_of(index);
    if (&naming_ != &architecture_.family->naming || name.find(".lora_") != name.npos ||
        std::ranges::find(model_.misfits, index, &DenseMisfit::tensor) != model_.misfits.end() ||
        name.find(".base_layer.") != name.npos || layer_of_mtp(name))
      return false;
    if (name.ends_with(kBias)) {
      const std::string linear = name.substr(0, name.size() - kBias.size());
      const auto is_its = [&](const DeclaredBias& declared) { return linear.ends_with(declared.linear); };
      return read_names_.contains(linear + std::string(kWeight)) &&
             std::ranges::none_of(architecture_.declared_biases, is_its);
    }
    if (const auto layer = layer_of(name)) return *layer < architecture_.layers;
    if (is_behind_another_root(name)) return true;
    const bool is_language_alone = architecture_.family->wrappers.front().model_type.empty();
    return is_language_alone && !name.ends_with(kWeight) && !is_optimizer_tensor(name) &&
           !name.starts_with(kUnknownPrefix);
  }

  /// Says whether a multimodal model of the family would have the name for a tensor of its language model, and this one
  /// would not: "lm_head.weight" beside "language_model.lm_head.weight".
  bool is_behind_another_root(const std::string& name) const {
    bool found = false;
    for (const std::string_view root : roots_of(*architecture_.family)) {
      if (root == root_) continue;
      found = found || name.starts_with(with_root(root, naming_.layers) + "0.");
      for_each_row(naming_, [&](const DenseRow& row) {
        found = found || (row.place == Place::Model && name == with_root(root, print_tail(row, TensorKind::Weight)));
      });
    }
    return found;
  }

  /// The number of the main stack's layer in which a tensor of multi-token prediction lies, where that has no name of
  /// its own.
  std::optional<i64> layer_of_mtp(const std::string& name) const {
    if (!has_mtp_ || !naming_.mtp_layers.empty()) return std::nullopt;
    std::optional<i64> found;
    for_each_row(naming_, [&](const DenseRow& row) {
      if (row.place != Place::Mtp || !name.ends_with(row.key)) return;
      for (i64 layer = 0; layer < architecture_.layers && !found; ++layer)
        if (name.size() > row.key.size() &&
            name == print_layer_prefix(naming_, root_, "decoder", layer, architecture_) + std::string(row.key))
          found = layer;
    });
    return found;
  }

  /// The key that the source's own naming would have.
  std::string key_of(const LayerId& id, const PartId& part) const {
    std::string key;
    for_each_row(naming_, [&](const DenseRow& row) {
      if (key.empty() && !row.former && !row.copy && is_in(row, id, architecture_) &&
          std::ranges::count(row.all_roles(), part.role) > 0)
        key = print_key(naming_, row, root_, id.stack, id.layer, part.kind, architecture_);
    });
    return key;
  }

  static std::string of_layer(const LayerId& id) {
    DenseMatrix where;
    where.stack = id.stack;
    where.layer = id.layer;
    return id.stack.empty() ? std::string() : fmt::format("layer {}'s ", layer_label(where));
  }

  void add_missing(const LayerId& id, const PartId& part) {
    const std::string key = key_of(id, part);
    if (!missing_.insert(key).second) return;
    const bool by_field = part.kind == TensorKind::Bias && !architecture_.attention_bias_field.empty();
    add(ErrorCode::ModelIncomplete, key, "'{}' is missing: {}{}{} of a {} model{}{}", key, of_layer(id),
        to_string(part.role), part.kind == TensorKind::Bias ? " bias" : "", architecture_.model_type,
        by_field && architecture_.attention_bias && has_field_of_bias(part.role)
            ? fmt::format(", of which config.json says {} true", architecture_.attention_bias_field)
            : std::string(),
        flaws_.size() < kHinted ? hint_at(key) : std::string());
  }

  /// Names a tensor that looks like the missing one under a name that programs do not read.
  std::string hint_at(const std::string& key) const {
    const std::size_t dot = key.rfind('.');
    const std::string of_lora = key.substr(0, dot) + ".base_layer" + key.substr(std::min(dot, key.size()));
    const std::string behind = "." + key;
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      const std::string& name = name_of(i);
      if (read_.contains(i)) continue;
      if (name.ends_with(of_lora))
        return fmt::format(". '{}' is there: an adapter (LoRA) that was not merged; merge it first", name);
      if (name.ends_with(behind)) return fmt::format(". '{}' is there, a name that programs do not read", name);
      if (key.ends_with("." + name)) return fmt::format(". '{}' is there, a name that programs do not read", name);
    }
    return {};
  }

  const Inventory& inventory_;
  const Recognition& model_;
  const StandIns& stand_ins_;
  const Architecture& architecture_;
  const DenseNaming& naming_;
  const std::string root_;
  std::map<LayerId, Parts> layers_;
  std::set<std::tuple<std::string_view, i64, ExpertSet>> experts_;
  std::set<std::size_t> read_;
  std::unordered_set<std::string> read_names_;
  /// The first layer that may have an optional part, and whether it has.
  std::map<PartId, std::pair<LayerId, bool>> optional_;
  std::set<std::string> missing_;
  bool has_mtp_ = false;
  std::vector<ModelFlaw> flaws_;
};

}  // namespace

bool is_in(const DenseRow& row, const LayerId& id, const Architecture& architecture) {
  if (row.place == Place::Model || id.stack.empty()) return row.place == Place::Model && id.stack.empty();
  if (row.place == Place::Mtp && id.stack != "mtp") return false;
  return applies(row, architecture.kind_of(id.stack, id.layer), architecture);
}

std::vector<ModelFlaw> find_flaws(const Inventory& inventory, const Recognition& model, const StandIns& stand_ins) {
  return FlawFinder(inventory, model, stand_ins).find();
}

}  // namespace glu_ckpt
