#include "arch/recognize_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "arch/dense_keys.hpp"
#include "arch/dense_layout.hpp"
#include "arch/dense_order.hpp"
#include "arch/find_flaws.hpp"
#include "arch/meant_type.hpp"
#include "arch/model_names.hpp"
#include "arch/model_view.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/parse_number.hpp"
#include "layout/adapter_names.hpp"
#include "layout/expert_block.hpp"
#include "layout/layout_table.hpp"
#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

/// A spelling that may explain a checkpoint.
struct Candidate {
  const DenseNaming* naming;
  std::string_view root;
};

std::vector<Candidate> candidates_for(const Architecture& architecture) {
  std::vector<Candidate> candidates;
  for (const std::string_view root : roots_of(*architecture.family))
    candidates.push_back({&architecture.family->naming, root});
  for (const std::string_view root : kMegatronRoots) candidates.push_back({architecture.family->megatron, root});
  if (architecture.family->torchtitan != nullptr) candidates.push_back({architecture.family->torchtitan, ""});
  return candidates;
}

std::vector<i64> wanted_shape(const DenseKey& key, const Architecture& architecture) {
  std::vector<i64> shape = dense_shape(*key.row, key.kind, architecture);
  if (key.stacked) shape.insert(shape.begin(), architecture.layers);
  return shape;
}

/// Says how the shape of a tensor contradicts the configuration; empty where it does not.
std::string shape_fault(const TensorRef& tensor, const DenseKey& key, const DenseNaming& naming,
                        const Architecture& architecture) {
  const bool may_be_padded = naming.pads_vocabulary && shape_of(key.row->roles[0]).rows == Dim::Vocab;
  const std::vector<i64> wanted = wanted_shape(key, architecture);
  std::vector<i64> found = tensor.shape;
  const std::size_t rows_axis = key.stacked ? 1 : 0;
  if (may_be_padded && found.size() == wanted.size() && found[rows_axis] > wanted[rows_axis])
    found[rows_axis] = wanted[rows_axis];
  const bool whole = dtype_bits(tensor.dtype) % 8 == 0;
  const bool known = std::ranges::find(wanted, 0) == wanted.end();
  if (found == wanted && whole && known) return {};
  std::string rows;
  for (const DenseRole role : key.row->all_roles())
    rows += fmt::format("{}{}", rows.empty() ? "" : " and ", fields_of(shape_of(role).rows));
  const RoleShape& shape = shape_of(key.row->roles[0]);
  const bool is_vector = shape.rows == Dim::One;
  const std::string sizes = is_vector                      ? std::string(fields_of(shape.cols))
                            : key.kind == TensorKind::Bias ? rows
                                                           : fmt::format("{} rows of {}", rows, fields_of(shape.cols));
  return fmt::format("'{}' is {} {}, but config.json makes it {} ({})", tensor.name, dtype_name(tensor.dtype),
                     shape_text(tensor.shape), shape_text(wanted), sizes);
}

class DenseRecognizer {
 public:
  DenseRecognizer(const Inventory& inventory, const Inventory& named, const ModelHints& hints, const Record& record,
                  const SourceAnswers& answers, Recognition& result)
      : inventory_(inventory),
        named_(named),
        hints_(hints),
        record_(record),
        answers_(answers),
        architecture_(*result.architecture),
        result_(result) {}

  void run() {
    choose_naming();
    if (result_.dense_naming != nullptr) read_dense();
    if (has_ranks()) return;
    result_.flaws = find_flaws(named_, result_, stand_ins_);
    find_missing_beside(named_, hints_, result_);
    check_root();
  }

 private:
  void read_dense() {
    join_scope();
    number_mtp_layers();
    find_expert_layers();
    if (result_.blocks.empty() && !architecture_.family->has_experts()) describe_dense();
    const DenseKeys keys(*result_.dense_naming, result_.dense_root, architecture_);
    for (const std::size_t index : result_.others)
      if (is_idle(index))
        result_.idle.push_back({index, !is_made_anew(name_of(index))});
      else if (const auto key = keys.parse(name_of(index)))
        add(index, *key);
      else
        add_codes(index, keys);
    std::ranges::sort(result_.dense, {}, [](const DenseMatrix& matrix) {
      return std::tuple(matrix.stack, matrix.layer, matrix.role, matrix.matrix.kind);
    });
    drop_repeated();
    find_originals();
    for (const DenseMisfit& misfit : result_.misfits) result_.problems.push_back(misfit.fault);
  }

  /// The layout of a model that has no experts by its family is its spelling, and the order of its FC1s.
  void describe_dense() {
    const bool is_hub = result_.dense_naming == &architecture_.family->naming;
    const bool is_megatron = result_.dense_naming == architecture_.family->megatron;
    result_.layout.naming = is_hub        ? "hf:" + architecture_.model_type
                            : is_megatron ? "megatron-dist"
                                          : std::string(result_.dense_naming->name);
    result_.layout.experts = "none";
    result_.naming = find_naming(result_.layout.naming);
    result_.naming_settled = true;
    settle_dense_order(hints_, record_, answers_, result_);
    dense_glu_ = result_.layout.glu;
  }

  const std::string& name_of(std::size_t index) const { return named_.tensors[index].name; }

  /// Files of several ranks hold parts of tensors.
  bool has_ranks() const {
    return std::ranges::any_of(named_.tensors,
                               [](const TensorRef& tensor) { return tensor.name.starts_with("mp_rank_"); });
  }

  /// Programs read a language model's keys behind "model.", and inside a multimodal one behind a longer text. Those of
  /// a bare model without a head may stand alone.
  void check_root() {
    if (result_.dense_naming != &architecture_.family->naming || result_.dense.empty()) return;
    const std::string& first = inventory_.tensors[result_.dense.front().matrix.tensor].name;
    // A legacy directory of one rank is no wrapper.
    if (!result_.wrapper.empty() && !result_.wrapper.starts_with("mp_rank_"))
      result_.flaws.push_back(
          {ModelFlaw::Kind::OtherPrefix, ErrorCode::NoSpelling, first,
           fmt::format("'{}': all keys begin with '{}', behind which programs do not look", first, result_.wrapper)});
    const std::string_view root = result_.dense_root;
    const bool is_inside = !hints_.text_model_type.empty() && hints_.text_model_type != hints_.model_type;
    const bool is_bare =
        root.empty() && std::ranges::find(result_.dense, DenseRole::Head, &DenseMatrix::role) == result_.dense.end();
    if (is_inside || is_bare || root == architecture_.family->root || root == architecture_.family->other_root) return;
    result_.flaws.push_back(
        {ModelFlaw::Kind::OtherPrefix, ErrorCode::NoSpelling, first,
         fmt::format("'{}': the keys of the model have {} in front, and programs read those of a {} model behind '{}'",
                     inventory_.tensors[result_.dense.front().matrix.tensor].name,
                     root.empty() ? "nothing" : fmt::format("'{}'", root), architecture_.model_type,
                     architecture_.family->root)});
  }

  /// The spelling that explains the most tensors.
  void choose_naming() {
    std::size_t most = 0;
    for (const Candidate& candidate : candidates_for(architecture_)) {
      const DenseKeys keys(*candidate.naming, std::string(candidate.root), architecture_);
      std::size_t explained = 0;
      for (const std::size_t index : result_.others)
        if (keys.parse(name_of(index))) ++explained;
      if (explained <= most) continue;
      most = explained;
      result_.dense_naming = candidate.naming;
      result_.dense_root = candidate.root;
    }
  }

  /// Takes the text in front of all keys of a language model inside another one out of its layers' names.
  void join_scope() {
    const std::string layers = with_root(result_.dense_root, result_.dense_naming->layers);
    // Experts that were renamed alone have another program's words behind the same text.
    const bool is_hub = result_.dense_naming == &architecture_.family->naming;
    const bool are_renamed = is_hub != result_.layout.naming.starts_with("hf:");
    for (ExpertBlock& block : result_.blocks)
      if (!block.scope.empty() && layers.starts_with(block.scope) &&
          (are_renamed || block.key_prefix.starts_with(layers)))
        block.scope.clear();
  }

  /// Numbers the layers inside of multi-token prediction through all its steps, as their other tensors are.
  void number_mtp_layers() {
    constexpr std::string_view kNested = "mtp.";
    if (!result_.dense_naming->mtp_nests) return;
    for (ExpertBlock& block : result_.blocks) {
      if (!block.stack.starts_with(kNested)) continue;
      const auto step = parse_number<i64>(std::string_view(block.stack).substr(kNested.size()));
      if (!step || *step >= kMaxLayers) continue;
      block.layer += *step * architecture_.mtp_depth();
      block.stack = "mtp";
    }
  }

  void find_expert_layers() {
    for (const ExpertBlock& block : result_.blocks)
      if (block.set == ExpertSet::Routed && !block.is_optimizer_state() && block.stack == "decoder")
        expert_layers_.insert(block.layer);
  }

  /// Returns whether a tensor is no part of the model, if it is zero where that matters.
  bool is_idle(std::size_t index) const {
    const TensorRef& tensor = named_.tensors[index];
    if (is_optimizer_tensor(tensor.name)) return false;
    if (is_made_anew(tensor.name)) return true;
    if (!is_router_bias(tensor.name) || has_router_bias(*architecture_.family)) return false;
    const i64 elements = checked_product(tensor.shape).value_or(0);
    return elements > 0 && (elements == architecture_.num_experts ||
                            elements == checked_mul(architecture_.num_experts, architecture_.layers));
  }

  void add(std::size_t index, const DenseKey& key) {
    const TensorRef& tensor = inventory_.tensors[index];
    if (const std::string fault = layer_fault(tensor, key); !fault.empty()) return add_misfit(index, key, fault);
    if (const std::string fault = shape_fault(tensor, key, *result_.dense_naming, architecture_); !fault.empty()) {
      // Bytes of several codes have a shape of their own; whoever decodes them checks it.
      const bool packed = tensor.dtype == Dtype::U8 || tensor.dtype == Dtype::I8 || dtype_bits(tensor.dtype) % 8 != 0;
      if (!packed) return add_misfit(index, key, fault);
      return add_stand_in(index, key);
    }
    const bool tied_head = key.row->roles[0] == DenseRole::Head && architecture_.tied;
    if (key.stack == "mtp") mtp_layer_of_[index] = key.layer;
    if (key.row->copy || tied_head)
      return result_.copies.push_back({index, tied_head ? DenseRole::Embedding : key.row->roles[0], 0});
    const i64 layers = key.stacked ? architecture_.layers : 1;
    for (i64 layer = 0; layer < layers; ++layer)
      for (std::size_t role = 0; role < key.row->num_roles; ++role) add_matrix(index, key, layer, role);
  }

  void add_misfit(std::size_t index, const DenseKey& key, const std::string& fault) {
    result_.misfits.push_back({index, fault});
    add_stand_in(index, key);
  }

  void add_stand_in(std::size_t index, const DenseKey& key) {
    for (const DenseRole role : key.row->all_roles())
      stand_ins_.emplace(std::pair(LayerId{key.stack, key.stacked ? kAllLayers : key.layer}, PartId{role, key.kind}),
                         index);
  }

  /// Codes of a quantized linear layer have names of their own: "qweight", "weight_packed".
  void add_codes(std::size_t index, const DenseKeys& keys) {
    const TensorRef& tensor = inventory_.tensors[index];
    const bool holds_codes = tensor.dtype == Dtype::U8 || tensor.dtype == Dtype::I8 || tensor.dtype == Dtype::I32 ||
                             tensor.dtype == Dtype::U32;
    if (!holds_codes) return;
    for (const TensorKind kind : {TensorKind::PackedWeight, TensorKind::QWeight}) {
      const std::string last = "." + std::string(words_of(kind).word);
      const std::string& name = name_of(index);
      if (!name.ends_with(last)) continue;
      const std::string weight = name.substr(0, name.size() - last.size()) + ".weight";
      if (const auto key = keys.parse(weight)) add_stand_in(index, *key);
    }
  }

  /// The kind of a layer by its experts must be the one that the configuration gives it.
  std::string layer_fault(const TensorRef& tensor, const DenseKey& key) const {
    if (key.stack != "decoder" || key.stacked || result_.blocks.empty()) return {};
    const bool dense = architecture_.kind_of(key.stack, key.layer).mlp != Mlp::Experts;
    if (dense != expert_layers_.contains(key.layer)) return {};
    const std::string& fields = architecture_.dense_layers_fields;
    return fmt::format("'{}': config.json makes layer {} a {} layer{}, but the checkpoint has {} in it", tensor.name,
                       key.layer, dense ? architecture_.family->hybrid ? "non-MoE" : "dense" : "MoE",
                       fields.empty() ? std::string() : " (" + fields + ")", dense ? "experts" : "no experts");
  }

  void add_matrix(std::size_t index, const DenseKey& key, i64 layer, std::size_t number) {
    const TensorRef& tensor = inventory_.tensors[index];
    DenseMatrix dense;
    dense.stack = key.stack;
    dense.layer = key.stacked ? layer : key.layer;
    dense.role = key.row->roles[number];
    dense.head_rows = head_rows_of(dense.role, architecture_);
    dense.op = key.row->op;
    dense.stored_dtype = tensor.dtype;
    const auto [rows, cols] = extents_of(dense.role, key.kind, architecture_);
    Matrix& matrix = dense.matrix;
    matrix.tensor = index;
    matrix.kind = key.kind;
    matrix.dtype = dense.op == ComputeOp::None ? tensor.dtype : Dtype::F32;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.element_bytes = dtype_bits(tensor.dtype) / 8;
    matrix.place = dense_placement(*key.row, number, key.kind, matrix.element_bytes, architecture_, dense_glu_);
    matrix.place.offset += layer * tensor.bytes / (key.stacked ? architecture_.layers : 1);
    result_.dense.push_back(dense);
  }

  /// Two spellings of one matrix: the second stays a tensor of its own.
  void drop_repeated() {
    const auto same = [](const DenseMatrix& a, const DenseMatrix& b) {
      return std::tie(a.stack, a.layer, a.role, a.matrix.kind) == std::tie(b.stack, b.layer, b.role, b.matrix.kind);
    };
    result_.dense.erase(std::unique(result_.dense.begin(), result_.dense.end(), same), result_.dense.end());
  }

  void find_originals() {
    std::erase_if(result_.copies, [&](TensorCopy& copy) {
      const bool of_head = copy.of == DenseRole::Head && architecture_.tied;
      const DenseRole role = of_head ? DenseRole::Embedding : copy.of;
      const auto original = std::ranges::find(result_.dense, role, &DenseMatrix::role);
      if (original == result_.dense.end() || lies_alone(copy.tensor)) return true;
      copy.of = role;
      copy.original = original->matrix.tensor;
      const Dtype dtype = inventory_.tensors[copy.tensor].dtype, of = inventory_.tensors[copy.original].dtype;
      // One of the two may be codes that are decoded to another dtype.
      return dtype != of && !(answers_.decode && is_float(dtype) && is_float(of));
    });
  }

  /// Returns whether a tensor is in a layer of multi-token prediction of which nothing else is there: its number is
  /// wrong.
  bool lies_alone(std::size_t tensor) const {
    const auto found = mtp_layer_of_.find(tensor);
    return found != mtp_layer_of_.end() && std::ranges::none_of(result_.dense, [&](const DenseMatrix& matrix) {
             return matrix.stack == "mtp" && matrix.layer == found->second;
           });
  }

  const Inventory& inventory_;
  /// The same tensors under their names in the model.
  const Inventory& named_;
  const ModelHints& hints_;
  const Record& record_;
  const SourceAnswers& answers_;
  const Architecture& architecture_;
  Recognition& result_;
  /// The order of gate and up in the FC1 of a dense model.
  Glu dense_glu_;
  std::set<i64> expert_layers_;
  std::map<std::size_t, i64> mtp_layer_of_;
  StandIns stand_ins_;
};

/// Returns whether experts of a model of this type are spelled, or packed, as transformers has them in memory.
bool is_in_memory(const Recognition& model, const std::string& type) {
  if (model.naming == nullptr || model.blocks.empty()) return false;
  if (!model.naming->in_memory_of.empty()) return true;
  const bool packs_only_in_memory =
      find_family(type) == nullptr && model.naming->native_indexed_split && model.naming == find_naming("hf:" + type);
  return packs_only_in_memory && std::ranges::all_of(model.blocks, [](const ExpertBlock& block) {
           return block.set == ExpertSet::Shared || (block.experts == Experts::Grouped && block.fused);
         });
}

/// A model that talks has experts of its own, of other sizes, beside the language model's: they are none of its
/// tensors.
void leave_other_models(Recognition& model) {
  for (const ExpertBlock& block : model.blocks)
    if (is_of_other_model(block))
      for (const Matrix& matrix : block.matrices) model.others.push_back(matrix.tensor);
  std::erase_if(model.blocks, is_of_other_model);
  std::ranges::sort(model.others);
  model.others.erase(std::unique(model.others.begin(), model.others.end()), model.others.end());
}

Recognition recognize_adapter(const Inventory& inventory) {
  Recognition adapter;
  adapter.is_adapter = true;
  adapter.layout.naming = "adapter";
  adapter.layout.experts = adapter_experts(inventory);
  adapter.layout.glu = {Glu::Kind::None, 0};
  adapter.layout.glu_source = "none";
  adapter.no_architecture = "it is an adapter (LoRA)";
  for (std::size_t i = 0; i < inventory.tensors.size(); ++i) adapter.others.push_back(i);
  return adapter;
}

}  // namespace

Recognition recognize_model(const Inventory& inventory, const ModelHints& hints, const Record& record,
                            const SourceAnswers& answers) {
  if (is_adapter(inventory)) return recognize_adapter(inventory);
  const std::string& type = hints.text_model_type.empty() ? hints.model_type : hints.text_model_type;
  ModelView view = view_model(inventory, hints);
  const Inventory& named = view.of(inventory);
  Recognition result = recognize(named, hints, record, answers);
  result.wrapper = std::move(view.wrapper);
  result.in_memory = view.in_memory || is_in_memory(result, type);
  try {
    result.architecture = read_architecture(hints.config);
  } catch (const Error& error) {
    result.no_architecture = error.what();
  }
  if (result.architecture != nullptr) leave_other_models(result);
  for (const std::size_t index : result.others)
    if (named.tensors[index].name != inventory.tensors[index].name)
      result.model_names.emplace(index, named.tensors[index].name);
  if (result.architecture != nullptr) {
    DenseRecognizer(inventory, named, hints, record, answers, result).run();
  } else if (result.no_architecture.empty()) {
    const std::string_view reason = refusal_of(type);
    result.no_architecture =
        !hints.no_config.empty() ? hints.no_config
        : hints.config.empty()   ? std::string("there is no config.json that says what model this is")
        : type.empty()           ? std::string("config.json has no model_type")
        : reason.empty() ? fmt::format("there is no map of models of type '{}'{}", type, words_of_meant_type(type))
                         : fmt::format("models of type '{}' are not converted: {}", type, reason);
  }
  // Where the naming stays, so does what stands in front of the keys.
  for (ExpertBlock& block : result.blocks) {
    const std::size_t at = wrapper_begin(inventory.tensors[block.matrices.front().tensor].name, result.wrapper);
    if (result.wrapper.empty() || at > block.key_scope.size()) continue;
    block.key_prefix.insert(at, result.wrapper);
    block.key_scope.insert(at, result.wrapper);
  }
  return result;
}

std::optional<DenseMisfit> find_misfit(const Recognition& model, const std::vector<TensorRef>& tensors) {
  if (model.architecture == nullptr || model.dense_naming == nullptr) return std::nullopt;
  const DenseKeys keys(*model.dense_naming, model.dense_root, *model.architecture);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto key = keys.parse(tensors[i].name);
    if (!key) continue;
    if (std::string fault = shape_fault(tensors[i], *key, *model.dense_naming, *model.architecture); !fault.empty())
      return DenseMisfit{i, std::move(fault)};
  }
  return std::nullopt;
}

std::vector<std::size_t> dense_tensors(const Recognition& recognition) {
  std::vector<std::size_t> tensors;
  for (const DenseMatrix& matrix : recognition.dense) tensors.push_back(matrix.matrix.tensor);
  for (const TensorCopy& copy : recognition.copies) tensors.push_back(copy.tensor);
  for (const IdleTensor& idle : recognition.idle) tensors.push_back(idle.tensor);
  std::ranges::sort(tensors);
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  return tensors;
}

}  // namespace glu_ckpt
