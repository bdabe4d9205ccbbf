/// Inventory -> Recognition: which row of the table explains the keys, and what order FC1's rows have.

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "core/fail.hpp"
#include "layout/expert_block.hpp"
#include "layout/key_pattern.hpp"

namespace glu_ckpt {
namespace {

/// All keys of one skeleton share their patterns, so patterns are matched once per skeleton.
struct KeyGroup {
  std::vector<const KeyPattern*> patterns;
  std::vector<std::size_t> tensors;
};

/// Which tensor a block's part is, by everything that identifies a block.
using BlockId = std::tuple<std::string, std::string, i64, ExpertSet>;

struct BlockDraft {
  ExpertBlock block;
  BlockParts parts;
};

/// Names that may be parts of experts without being one of their matrices: scales, zero points, packed
/// forms. They stand under `experts`, or beside a known matrix.
class ExpertLikeNames {
 public:
  explicit ExpertLikeNames(std::size_t count) { beside_.reserve(count); }

  /// `name` is a matrix: `x.weight` has its companions in `x.`, a packed `x` in `x_...`.
  void add_matrix(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    const std::string_view last = name.substr(dot + 1);
    const bool suffixed = last.starts_with("weight") || last.starts_with("bias");
    beside_.insert(suffixed ? name.substr(0, dot) : name);
  }

  bool contains(std::string_view name) const {
    static constexpr std::string_view kExempt[] = {"e_score_correction_bias", "expert_bias", "gate_weight"};
    const auto has = [&](std::string_view word) { return name.find(word) != std::string_view::npos; };
    const std::string_view last = name.substr(name.rfind('.') + 1);
    if (last.starts_with("_extra_state") || has(".router.")) return false;
    if (std::ranges::find(kExempt, last) != std::end(kExempt)) return false;
    if (has(".experts.") || has(".shared_experts.") || has(".shared_expert.")) return true;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return false;
    if (beside_.contains(name.substr(0, dot))) return true;
    for (std::size_t cut = name.find('_', dot); cut != std::string_view::npos; cut = name.find('_', cut + 1))
      if (beside_.contains(name.substr(0, cut))) return true;
    return false;
  }

 private:
  std::unordered_set<std::string_view> beside_;
};

const std::string* find_entry(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found == record.end() ? nullptr : &found->second;
}

class Recognizer {
 public:
  Recognizer(const Inventory& inventory, const ModelHints& hints, const Record& record, const SourceAnswers& answers)
      : inventory_(inventory), hints_(hints), record_(record), answers_(answers) {}

  Recognition run() {
    group_keys();
    refuse_mxfp4();
    read_num_hidden_layers();
    recorded_glu("glu");
    recorded_glu("shared_glu");
    choose_naming();
    if (result_.naming != nullptr) {
      draft_blocks();
      finish_blocks();
    }
    list_others();
    summarize();
    check_record();
    return std::move(result_);
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }

  void group_keys() {
    std::unordered_map<std::string, std::size_t> ids;
    skeletons_.reserve(inventory_.tensors.size());
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      skeletons_.push_back(skeletonize(tensor(i).name));
      const auto [it, added] = ids.try_emplace(skeletons_.back().text, groups_.size());
      if (added) groups_.push_back({match_patterns(skeletons_.back()), {}});
      groups_[it->second].tensors.push_back(i);
    }
  }

  /// The hub releases of gpt-oss: packed E2M1 blocks and E8M0 scales in place of weights.
  void refuse_mxfp4() const {
    for (const KeyGroup& group : groups_) {
      const std::string& name = tensor(group.tensors.front()).name;
      if (name.ends_with(".experts.gate_up_proj_blocks"))
        fail(ErrorCode::NotSupported, {{}, name},
             "'{}': MXFP4 experts (blocks and scales) are not supported by this version; save the model in bf16 first",
             name);
    }
  }

  void read_num_hidden_layers() {
    result_.num_hidden_layers = hints_.num_hidden_layers;
    const std::string* recorded = find_entry(record_, "num_hidden_layers");
    if (recorded == nullptr) return;
    i64 layers = 0;
    const auto [end, error] = std::from_chars(recorded->data(), recorded->data() + recorded->size(), layers);
    if (error != std::errc() || end != recorded->data() + recorded->size() || layers < 1)
      fail(ErrorCode::RecordInvalid, {}, "the record's num_hidden_layers '{}' is not a number of layers", *recorded);
    result_.num_hidden_layers = layers;
  }

  // ---- which naming -----------------------------------------------------------------------------

  static const KeyPattern* pattern_of(const KeyGroup& group, const Naming& naming) {
    for (const KeyPattern* pattern : group.patterns)
      if (pattern->naming == &naming) return pattern;
    return nullptr;
  }

  /// The first key of an expert that `naming` cannot explain, although some row can.
  const TensorRef* first_unexplained(const Naming& naming) const {
    for (const KeyGroup& group : groups_)
      if (!group.patterns.empty() && pattern_of(group, naming) == nullptr) return &tensor(group.tensors.front());
    return nullptr;
  }

  void choose_naming() {
    std::size_t matched = 0;
    for (const KeyGroup& group : groups_) matched += group.patterns.empty() ? 0 : 1;
    if (answers_.naming) return choose_named(*answers_.naming, "--from-naming", ErrorCode::UnexplainedKey);
    if (matched == 0) return;
    if (const std::string* naming = find_entry(record_, "naming"))
      return choose_named(*naming, "the record", ErrorCode::RecordContradicts);
    std::vector<const Naming*> candidates = explaining_namings();
    if (candidates.empty()) no_naming_fits();
    std::vector<const Naming*> named;
    for (const Naming* naming : candidates)
      if (lists_model_type(*naming)) named.push_back(naming);
    if (!named.empty()) return choose_by_shape(named, "hf:" + hints_.model_type);
    if (agree(candidates)) return take(candidates.front(), std::string(candidates.front()->name), true);
    choose_unnamed(candidates);
  }

  /// Without a record, config.json is an answer as good as --from-naming; where both fit the keys and
  /// read them differently, one of them is wrong.
  void check_family_agrees(const Naming& naming, const std::string& name) const {
    if (find_entry(record_, "naming") != nullptr) return;
    const Naming* other = nullptr;
    for (const Naming& row : namings()) {
      if (!lists_model_type(row) || first_unexplained(row) != nullptr) continue;
      if (&row == &naming || agree({&naming, &row})) return;
      other = &row;
    }
    if (other != nullptr)
      fail(ErrorCode::GluConflict, {},
           "--from-naming says {}, but config.json names {}, which reads the same keys differently. Both cannot be "
           "true; "
           "find out which one is",
           name, hints_.model_type);
  }

  void choose_named(const std::string& name, std::string_view who, ErrorCode code) {
    const Naming* naming = find_naming(name);
    if (naming == nullptr) {
      if (code == ErrorCode::RecordContradicts)
        fail(ErrorCode::RecordInvalid, {}, "the record names the unknown naming '{}'", name);
      fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming; `glu-ckpt layouts` lists them", name);
    }
    if (const TensorRef* key = first_unexplained(*naming))
      fail(code, {{}, key->name}, "{} says the naming is {}, which does not explain '{}'", who, name, key->name);
    if (code == ErrorCode::UnexplainedKey) check_family_agrees(*naming, name);
    std::vector<const Naming*> rows{naming};
    for (const Naming& other : namings())
      if (&other != naming && "hf:" + hints_.model_type == name && lists_model_type(other) &&
          first_unexplained(other) == nullptr)
        rows.push_back(&other);
    choose_by_shape(rows, name);
  }

  std::vector<const Naming*> explaining_namings() const {
    std::vector<const Naming*> found;
    for (const Naming& naming : namings())
      if (first_unexplained(naming) == nullptr) found.push_back(&naming);
    return found;
  }

  [[noreturn]] void no_naming_fits() const {
    const Naming* best = &namings().front();
    std::size_t most = 0;
    for (const Naming& naming : namings()) {
      std::size_t explained = 0;
      for (const KeyGroup& group : groups_)
        if (pattern_of(group, naming) != nullptr) explained += group.tensors.size();
      if (explained > most) {
        most = explained;
        best = &naming;
      }
    }
    const TensorRef* key = first_unexplained(*best);
    fail(ErrorCode::UnexplainedKey, {{}, key->name},
         "no single naming explains all expert keys: {} fits best, but not '{}'", best->name, key->name);
  }

  bool lists_model_type(const Naming& naming) const {
    if (hints_.model_type.empty()) return false;
    return naming.name == "hf:" + hints_.model_type ||
           std::ranges::find(naming.model_types, hints_.model_type) != naming.model_types.end();
  }

  /// Whether all rows read the keys at hand alike: same axes, same order of gate and up, same nativeness.
  bool agree(const std::vector<const Naming*>& rows) const {
    for (const KeyGroup& group : groups_) {
      if (group.patterns.empty()) continue;
      const KeyPattern* first = pattern_of(group, *rows.front());
      for (const Naming* row : rows) {
        const KeyPattern* pattern = pattern_of(group, *row);
        if (pattern->role != first->role || pattern->set != first->set || pattern->experts != first->experts)
          return false;
        if (pattern->set == ExpertSet::Routed && row->axes != rows.front()->axes) return false;
        if (pattern->role == Role::GateUp && pattern_fixed_glu(*pattern) != pattern_fixed_glu(*first)) return false;
      }
    }
    return true;
  }

  static Glu pattern_fixed_glu(const KeyPattern& pattern) {
    return is_native(*pattern.naming, pattern.set, pattern.experts, true) ? fixed_glu(*pattern.naming) : Glu{};
  }

  /// Rows of one family that differ in orientation: FC1's and FC2's shapes together decide.
  void choose_by_shape(const std::vector<const Naming*>& rows, const std::string& name) {
    const Naming* chosen = rows.front();
    for (auto row = rows.rbegin(); row != rows.rend(); ++row)
      if (shapes_fit(**row)) chosen = *row;
    take(chosen, rows.size() > 1 && chosen != rows.front() ? std::string(chosen->name) : name, true);
  }

  bool shapes_fit(const Naming& naming) const {
    for (const auto& [id, draft] : make_drafts(naming))
      if (draft.block.set == ExpertSet::Routed && !axes_fit(draft.parts, inventory_, naming.axes)) return false;
    return true;
  }

  /// Several families fit and read the keys differently. Shapes may settle the axes, but never the order
  /// of gate and up: only the user can.
  void choose_unnamed(const std::vector<const Naming*>& candidates) {
    std::vector<const Naming*> fitting;
    for (const Naming* naming : candidates)
      if (shapes_fit(*naming)) fitting.push_back(naming);
    const bool one_axes = !fitting.empty() && std::ranges::all_of(fitting, [&](const Naming* naming) {
      return naming->axes == fitting.front()->axes;
    });
    if (answers_.glu && one_axes) return take(fitting.front(), std::string(fitting.front()->name), false);
    std::string names;
    for (const Naming* naming : fitting.empty() ? candidates : fitting)
      names += (names.empty() ? "" : ", ") + std::string(naming->name);
    const TensorRef& key = first_expert_tensor();
    fail(ErrorCode::AmbiguousNaming, {{}, key.name},
         "'{}' is spelled alike by families that store gate and up in different orders ({}), and no config.json names "
         "one. Say --from-naming NAME, or --from-glu",
         key.name, names);
  }

  const TensorRef& first_expert_tensor() const {
    for (const KeyGroup& group : groups_)
      if (!group.patterns.empty()) return tensor(group.tensors.front());
    return inventory_.tensors.front();
  }

  void take(const Naming* naming, std::string name, bool family_known) {
    result_.naming = naming;
    result_.layout.naming = std::move(name);
    family_known_ = family_known;
  }

  // ---- blocks -----------------------------------------------------------------------------------

  std::map<BlockId, BlockDraft> make_drafts(const Naming& naming) const {
    std::map<BlockId, BlockDraft> drafts;
    for (const KeyGroup& group : groups_) {
      const KeyPattern* pattern = pattern_of(group, naming);
      if (pattern == nullptr) continue;
      for (const std::size_t index : group.tensors) add_to_draft(drafts, *pattern, index);
    }
    return drafts;
  }

  void add_to_draft(std::map<BlockId, BlockDraft>& drafts, const KeyPattern& pattern, std::size_t index) const {
    const std::string_view name = tensor(index).name;
    const KeyParts key = parse_key(name, skeletons_[index], pattern);
    ExpertBlock block;
    block.scope = key.scope;
    block.stack = pattern.stack->stack;
    block.layer = key.layer;
    block.set = pattern.set;
    // The label must not depend on the naming, so every row counts alike.
    if (block.stack == "decoder" && result_.num_hidden_layers && block.layer >= *result_.num_hidden_layers) {
      block.stack = "mtp";
      block.layer -= *result_.num_hidden_layers;
    }
    const BlockId id{block.scope, block.stack, block.layer, block.set};
    auto [it, added] = drafts.try_emplace(id);
    block.key_prefix = fmt::format("{}{}{}{}", key.scope, pattern.stack->before, key.layer, pattern.stack->after);
    if (added)
      it->second.block = std::move(block);
    else if (it->second.block.key_prefix != block.key_prefix)
      fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "layer {} is present twice: as '{}...' and as '{}'",
           layer_label(block), it->second.block.key_prefix, name);
    PartTensors& part = it->second.parts[{pattern.kind, pattern.experts, pattern.role}];
    part.emplace_back(key.expert, index);
    if (!pattern.has_expert && part.size() > 1)
      fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "'{}' and '{}' both are layer {} of stack {}", name,
           tensor(part.front().second).name, key.layer, pattern.stack->stack);
  }

  void draft_blocks() {
    for (auto& [id, draft] : make_drafts(*result_.naming)) {
      BlockContext context{&inventory_, result_.naming, router_shape(draft.block), std::nullopt};
      if (draft.block.set == ExpertSet::Routed && draft.block.stack == "decoder")
        context.num_experts = hints_.num_experts;
      shapes_.push_back(check_block(std::move(draft.block), std::move(draft.parts), context));
    }
  }

  std::optional<std::pair<i64, i64>> router_shape(const ExpertBlock& block) const {
    if (by_name_.empty())
      for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) by_name_.emplace(tensor(i).name, i);
    const auto found = by_name_.find(block.key_prefix + std::string(result_.naming->router));
    if (found == by_name_.end() || tensor(found->second).shape.size() != 2) return std::nullopt;
    return std::pair{tensor(found->second).shape[0], tensor(found->second).shape[1]};
  }

  void finish_blocks() {
    for (BlockShape& shape : shapes_) check_answer_fits(shape);
    for (BlockShape& shape : shapes_) {
      ExpertBlock& block = shape.block;
      if (block.glu.kind != Glu::Kind::None) block.glu = block.fused ? fused_glu(block) : Glu{Glu::Kind::Split, 0};
      add_matrices(shape, inventory_);
      result_.blocks.push_back(std::move(block));
    }
    list_ragged_blocks();
  }

  /// The order of gate and up in a fused FC1, from whoever knows: the user, the record, the family.
  Glu fused_glu(const ExpertBlock& block) {
    const bool shared = block.set == ExpertSet::Shared;
    const auto& asked = shared ? answers_.shared_glu : answers_.glu;
    const auto recorded = recorded_glu(shared ? "shared_glu" : "glu");
    const Glu by_naming = family_known_ && is_native(*result_.naming, block.set, block.experts, true)
                              ? fixed_glu(*result_.naming)
                              : Glu{};
    std::string& source = shared ? shared_source_ : result_.layout.glu_source;
    if (asked && recorded && *asked != *recorded)
      conflict(shared, *asked, fmt::format("the record says {}", to_string(*recorded)));
    if (asked && !recorded && by_naming.kind != Glu::Kind::Unknown && *asked != by_naming)
      conflict(shared, *asked, fmt::format("{} is {}", result_.layout.naming, to_string(by_naming)));
    if ((asked || recorded) && (asked ? *asked : *recorded).kind != Glu::Kind::Split) {
      source = asked ? "option" : "record";
      return asked ? *asked : *recorded;
    }
    source = by_naming.kind == Glu::Kind::Unknown ? "none" : "naming";
    return by_naming;
  }

  [[noreturn]] static void conflict(bool shared, const Glu& asked, const std::string& other) {
    fail(ErrorCode::GluConflict, {}, "{} says {}, but {}. Both cannot be true; find out which one is",
         shared ? "--from-shared-glu" : "--from-glu", to_string(asked), other);
  }

  std::optional<Glu> recorded_glu(const std::string& key) const {
    const std::string* text = find_entry(record_, key);
    if (text == nullptr || *text == "unknown" || *text == "none") return std::nullopt;
    try {
      return parse_glu(*text);
    } catch (const Error&) {
      fail(ErrorCode::RecordInvalid, {}, "the record's {} '{}' is not a glu arrangement", key, *text);
    }
  }

  /// An answer about FC1's order must be possible for the tensors it speaks about.
  void check_answer_fits(const BlockShape& shape) const {
    const ExpertBlock& block = shape.block;
    const bool shared = block.set == ExpertSet::Shared;
    const auto& asked = shared ? answers_.shared_glu : answers_.glu;
    const auto recorded = recorded_glu(shared ? "shared_glu" : "glu");
    check_recorded_gate(shape, shared ? "shared_glu" : "glu");
    if (!asked && !recorded) return;
    const Glu& answer = asked ? *asked : *recorded;
    const ErrorCode code = asked ? ErrorCode::GluConflict : ErrorCode::RecordContradicts;
    const std::string who = asked ? (shared ? "--from-shared-glu" : "--from-glu") : "the record";
    const std::string& name = inventory_.tensors[shape.parts.begin()->second.front().second].name;
    if (block.glu.kind == Glu::Kind::None)
      fail(code, {{}, name}, "{} says {}, but layer {} has no gate: FC1 and FC2 are of one width", who,
           to_string(answer), layer_label(block));
    // A checkpoint may mix packed and per-expert layers; an answer is then about the packed ones.
    const bool split = answer.kind == Glu::Kind::Split;
    const auto is_packed = [&](const BlockShape& other) { return other.block.set == block.set && other.block.fused; };
    if (block.fused ? split : !split && std::ranges::none_of(shapes_, is_packed))
      fail(code, {{}, name}, "{} says {}, but gate and up of layer {} are {}, such as '{}'", who, to_string(answer),
           layer_label(block), block.fused ? "one tensor" : "two tensors", name);
    if (answer.kind != Glu::Kind::Interleaved || !block.fused) return;
    for (const i64 f : shape.intermediate)
      if (f % answer.block_rows != 0)
        fail(asked ? ErrorCode::NotDivisible : ErrorCode::RecordContradicts, {{}, name},
             "{} says interleaved:{}, but '{}' has {} rows, which is no multiple of {}", who, answer.block_rows, name,
             2 * f, u64{2} * static_cast<u64>(answer.block_rows));
  }

  void check_recorded_gate(const BlockShape& shape, const std::string& key) const {
    const std::string* text = find_entry(record_, key);
    if (text == nullptr || *text != "none" || shape.block.glu.kind == Glu::Kind::None) return;
    fail(ErrorCode::RecordContradicts, {}, "the record says that there is no gate ({}: none), but layer {} has one",
         key, layer_label(shape.block));
  }

  void list_ragged_blocks() {
    for (const ExpertBlock& block : result_.blocks)
      if (block.intermediate_size < 0)
        result_.problems.push_back(
            fmt::format("layer {}: experts differ in width; they cannot be grouped", layer_label(block)));
  }

  // ---- the rest ---------------------------------------------------------------------------------

  void list_others() {
    std::vector<i64> covered(inventory_.tensors.size(), -1);
    ExpertLikeNames expert_like(inventory_.tensors.size());
    for (const ExpertBlock& block : result_.blocks)
      for (const Matrix& matrix : block.matrices) {
        i64& bytes = covered[matrix.tensor];
        if (bytes < 0) expert_like.add_matrix(tensor(matrix.tensor).name);
        bytes = std::max<i64>(bytes, 0) + matrix.rows * matrix.cols * matrix.element_bytes;
      }
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
      if (covered[i] == tensor(i).bytes) continue;
      // A digest that left bytes of an expert out would call different models equal.
      if (covered[i] >= 0)
        fail(ErrorCode::ExpertShape, {{}, tensor(i).name}, "'{}' has {} bytes, but its matrices have {}",
             tensor(i).name, tensor(i).bytes, covered[i]);
      result_.others.push_back(i);
      if (expert_like.contains(tensor(i).name)) result_.unexplained.push_back(i);
    }
    if (!result_.unexplained.empty())
      result_.problems.push_back(
          fmt::format("{} tensors look like parts of experts but no naming explains them, such "
                      "as '{}'",
                      result_.unexplained.size(), tensor(result_.unexplained.front()).name));
  }

  void summarize() {
    LayoutAnswers& layout = result_.layout;
    bool seen = false;
    for (const ExpertBlock& block : result_.blocks) {
      if (block.set == ExpertSet::Shared) {
        if (!layout.shared_glu || block.fused) layout.shared_glu = block.glu;
        continue;
      }
      const std::string experts(to_string(block.experts));
      if (!seen) {
        layout.experts = experts;
        layout.glu = block.glu;
        if (block.glu.kind == Glu::Kind::Split || block.glu.kind == Glu::Kind::None) layout.glu_source = "naming";
      } else if (layout.experts != experts) {
        layout.experts = "mixed";
      }
      if (block.fused) layout.glu = block.glu;
      seen = true;
    }
    if (layout.glu_source.empty()) layout.glu_source = "none";
  }

  void check_record() const {
    const std::string* experts = find_entry(record_, "experts");
    if (experts == nullptr || result_.blocks.empty() || *experts == result_.layout.experts) return;
    fail(ErrorCode::RecordContradicts, {}, "the record says the experts are {}, but the keys are {}", *experts,
         result_.layout.experts.empty() ? "none" : result_.layout.experts);
  }

  const Inventory& inventory_;
  const ModelHints& hints_;
  const Record& record_;
  const SourceAnswers& answers_;
  std::vector<KeySkeleton> skeletons_;
  std::vector<KeyGroup> groups_;
  std::vector<BlockShape> shapes_;
  mutable std::unordered_map<std::string_view, std::size_t> by_name_;
  bool family_known_ = false;
  std::string shared_source_;
  Recognition result_;
};

}  // namespace

Recognition recognize(const Inventory& inventory, const ModelHints& hints, const Record& record,
                      const SourceAnswers& answers) {
  return Recognizer(inventory, hints, record, answers).run();
}

}  // namespace glu_ckpt
