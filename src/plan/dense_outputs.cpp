#include <algorithm>
#include <map>
#include <tuple>

#include "arch/dense_layout.hpp"
#include "arch/dense_order.hpp"
#include "arch/find_flaws.hpp"
#include "arch/model_names.hpp"
#include "arch/recognize_model.hpp"
#include "core/checked_math.hpp"
#include "core/compute.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "plan/draft_outputs.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

class DenseWriter {
 public:
  DenseWriter(const Inventory& inventory, const Recognition& from, const DenseTarget& target, DraftOutputs& outputs,
              Plan& plan)
      : inventory_(inventory),
        from_(from),
        architecture_(*from.architecture),
        target_(target),
        outputs_(outputs),
        plan_(plan) {
    for (const DenseMatrix& matrix : from.dense) {
      layers_[{matrix.stack, matrix.layer}].emplace(PartId{matrix.role, matrix.matrix.kind}, &matrix);
      roles_in_[matrix.matrix.tensor].insert(matrix.role);
    }
  }

  void run() {
    check_explained();
    check_whole();
    for (const auto& [id, parts] : layers_) write_layer(id, parts);
    check_used();
    cut_padding();
    write_copies();
    write_unknown();
    say_what_happens();
  }

 private:
  using Parts = std::map<PartId, const DenseMatrix*>;

  const std::string& name_of(std::size_t tensor) const { return inventory_.tensors[tensor].name; }
  /// A shape that contradicts the configuration, or an optimizer's tensor, stops the whole conversion.
  void check_explained() const {
    if (!from_.misfits.empty()) {
      const DenseMisfit& misfit = from_.misfits.front();
      fail(ErrorCode::ModelShape, {{}, name_of(misfit.tensor)}, "{}", misfit.fault);
    }
    const auto is_state = [&](std::size_t index) { return is_optimizer_tensor(name_of(index)); };
    const auto state = std::ranges::find_if(from_.others, is_state);
    const bool blocks = std::ranges::any_of(from_.blocks, &ExpertBlock::is_optimizer_state);
    if (state == from_.others.end() && !blocks) return;
    const std::string name = state == from_.others.end() ? std::string() : name_of(*state);
    fail_asking({"--optimizer"}, ErrorCode::NoSpelling, {{}, name},
                "{}{}an optimizer's state has no place in the naming {}; leave it out with --optimizer drop", name,
                name.empty() ? "" : ": ", target_.naming->name);
  }

  void check_whole() const {
    const auto flaw = std::ranges::find_if(from_.flaws, &ModelFlaw::stops_renaming);
    if (flaw != from_.flaws.end()) fail(flaw->code, {{}, flaw->tensor}, "{}", flaw->text);
  }

  // ---- writing ----------------------------------------------------------------------------------

  void write_layer(const LayerId& id, const Parts& parts) {
    for_each_row(*target_.naming, [&](const DenseRow& row) {
      if (row.copy || row.former || !is_in(row, id, architecture_)) return;
      write(row, id, TensorKind::Weight, parts);
      if (row.has_kinds()) write(row, id, TensorKind::Bias, parts);
    });
  }

  void write(const DenseRow& row, const LayerId& id, TensorKind kind, const Parts& parts) {
    std::vector<const DenseMatrix*> matrices;
    for (const DenseRole role : row.all_roles())
      if (const auto found = parts.find({role, kind}); found != parts.end()) matrices.push_back(found->second);
    if (matrices.empty()) return write_zeros(row, id, parts);
    if (matrices.size() < row.num_roles)
      fail(ErrorCode::ModelIncomplete, {{}, name_of(matrices.front()->matrix.tensor)},
           "'{}' needs '{}' and what else stands beside it, and {} of {} are there",
           print_key(*target_.naming, row, target_.root, id.stack, id.layer, kind, architecture_),
           name_of(matrices.front()->matrix.tensor), matrices.size(), row.num_roles);
    const DenseMatrix& first = *matrices.front();
    const Dtype dtype = written_dtype(row, first);
    DraftOutput output;
    output.name = print_key(*target_.naming, row, target_.root, id.stack, id.layer, kind, architecture_);
    output.dtype = dtype;
    output.shape = dense_shape(row, kind, architecture_);
    output.bytes = dense_rows(row, kind, architecture_) * first.matrix.cols * (dtype_bits(dtype) / 8);
    output.origin = first.matrix.tensor;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const DenseMatrix& part = *matrices[i];
      used_.insert(&part);
      output.origin = std::min(output.origin, part.matrix.tensor);
      if (part.stored_dtype != first.stored_dtype)
        fail(ErrorCode::NotExact, {{}, name_of(part.matrix.tensor)}, "'{}' is {} and '{}' is {}; '{}' cannot hold both",
             name_of(first.matrix.tensor), dtype_name(first.stored_dtype), name_of(part.matrix.tensor),
             dtype_name(part.stored_dtype), output.name);
      if (part.op != row.op) {
        add_compute(row, part, output);
        continue;
      }
      Matrix to = part.matrix;
      to.tensor = 0;
      if (row.groups == Groups::GluBlocks) (void)dense_block_rows(target_.glu, part.matrix.rows, output.name);
      to.place = dense_placement(row, i, kind, to.element_bytes, architecture_, target_.glu);
      append_matrix_moves(part.matrix, to, output.moves);
    }
    count(row, id, output, matrices);
    outputs_.list.push_back(std::move(output));
  }

  /// A bias of the router that the target asks every model for, where no model of the family has one.
  void write_zeros(const DenseRow& row, const LayerId& id, const Parts& parts) {
    if (!row.zero_if_unknown || has_router_bias(*architecture_.family)) return;
    const auto router = parts.find({DenseRole::Router, TensorKind::Weight});
    if (router == parts.end()) return;
    DraftOutput output;
    output.name = print_key(*target_.naming, row, target_.root, id.stack, id.layer, TensorKind::Weight, architecture_);
    output.dtype = Dtype::F32;
    output.shape = dense_shape(row, TensorKind::Weight, architecture_);
    output.bytes = checked_product(output.shape).value() * (dtype_bits(output.dtype) / 8);
    output.origin = router->second->matrix.tensor;
    output.zeros = true;
    if (zeros_++ == 0) first_zeros_ = output.name;
    outputs_.list.push_back(std::move(output));
  }

  /// Computed tensors are whole ones of one matrix each.
  void add_compute(const DenseRow& row, const DenseMatrix& part, DraftOutput& output) {
    const ComputeOp op = row.op == ComputeOp::None ? part.op : inverse(row.op);
    output.compute = Compute{part.matrix.tensor, 0, op};
    ++computed_;
  }

  Dtype written_dtype(const DenseRow& row, const DenseMatrix& part) const {
    if (part.op == row.op) return part.stored_dtype;
    // Less 1, a weight in BF16 has more digits than BF16 holds.
    return row.op == ComputeOp::None ? Dtype::F32 : target_.computed_dtype.value_or(part.stored_dtype);
  }

  void check_used() const {
    for (const DenseMatrix& matrix : from_.dense)
      if (!used_.contains(&matrix))
        fail(ErrorCode::NoSpelling, {{}, name_of(matrix.matrix.tensor)}, "'{}' ({} {}) has no place in the naming {}",
             name_of(matrix.matrix.tensor), to_string(matrix.role), to_string(matrix.matrix.kind),
             target_.naming->name);
  }

  /// A trainer pads the vocabulary; the rows behind the last word are not the model's.
  void cut_padding() {
    for (const DenseRole role : {DenseRole::Embedding, DenseRole::Head}) {
      const auto found = layers_.at({}).find({role, TensorKind::Weight});
      if (found == layers_.at({}).end()) continue;
      const Matrix& matrix = found->second->matrix;
      const TensorRef& tensor = inventory_.tensors[matrix.tensor];
      const i64 bytes = matrix.rows * matrix.cols * matrix.element_bytes;
      if (bytes == tensor.bytes) continue;
      plan_.cuts.push_back({matrix.tensor, bytes});
      plan_.notes.push_back(fmt::format("'{}' has {} rows; those behind vocab_size {} are padding and are cut",
                                        tensor.name, tensor.shape.front(), matrix.rows));
    }
    std::ranges::sort(plan_.cuts, {}, &CutTensor::tensor);
  }

  // ---- copies and what no map knows -------------------------------------------------------------

  /// The tensors of the target that repeat others: all that its naming has, unless a record says which.
  void write_copies() {
    for (const TensorCopy& copy : from_.copies) plan_.dropped.push_back(copy.tensor);
    for (const IdleTensor& idle : from_.idle) plan_.dropped.push_back(idle.tensor);
    for_each_row(*target_.naming, [&](const DenseRow& row) {
      const bool tied_head = row.place == Place::Model && row.roles[0] == DenseRole::Head && architecture_.tied;
      if (!row.copy && !tied_head) return;
      if (row.place == Place::Model) return write_copy(row, {}, true);
      for (const auto& [id, parts] : layers_)
        if (id.stack == "mtp") write_copy(row, id, false);
    });
    std::ranges::sort(plan_.dropped);
  }

  void write_copy(const DenseRow& row, const LayerId& id, bool only_named) {
    const DenseRole role = row.roles[0] == DenseRole::Head && architecture_.tied ? DenseRole::Embedding : row.roles[0];
    const std::string name =
        print_key(*target_.naming, row, target_.root, id.stack, id.layer, TensorKind::Weight, architecture_);
    if (target_.copies ? !target_.copies->contains(name) : only_named) {
      if (!only_named) left_out_.push_back(name);
      return;
    }
    const Parts& model = layers_.at({});
    const auto original = model.find({role, TensorKind::Weight});
    if (original == model.end()) return;
    const Matrix& matrix = original->second->matrix;
    DraftOutput output;
    output.name = name;
    output.dtype = matrix.dtype;
    output.shape = dense_shape(row, TensorKind::Weight, architecture_);
    output.bytes = matrix.rows * matrix.cols * matrix.element_bytes;
    output.origin = matrix.tensor;
    output.repeats = true;
    Matrix to = matrix;
    to.tensor = 0;
    to.place = dense_placement(row, 0, TensorKind::Weight, matrix.element_bytes, architecture_);
    append_matrix_moves(matrix, to, output.moves);
    outputs_.list.push_back(std::move(output));
  }

  void write_unknown() {
    const std::vector<std::size_t> known = dense_tensors(from_);
    const DenseNaming* const own = &architecture_.family->naming;
    for (const std::size_t index : from_.others) {
      if (std::ranges::binary_search(known, index)) continue;
      const TensorRef& tensor = inventory_.tensors[index];
      check_no_router_bias(tensor);
      // In the model's own form the prefix is a part of the name like any other.
      const bool travels = from_.dense_naming != own && tensor.name.starts_with(kUnknownPrefix);
      if (!travels && !target_.keep_unknown)
        fail_asking({"--unknown"}, ErrorCode::UnknownTensor, {{}, tensor.name}, "'{}' {} {} {}", tensor.name,
                    dtype_name(tensor.dtype), shape_text(tensor.shape), words_about_unknown(tensor.name));
      DraftOutput output{
          travelling_name(model_name(inventory_, from_, index), from_.dense_naming->name, target_.naming->name),
          tensor.dtype,
          tensor.shape,
          tensor.bytes,
          {},
          index};
      if (tensor.bytes > 0) {
        Move move;
        move.src = index;
        move.run_bytes = tensor.bytes;
        output.moves.push_back(move);
      }
      outputs_.list.push_back(std::move(output));
      ++unknown_;
    }
  }

  /// Refuses a router's bias that a trainer used and the family does not have. One that is all zero is idle.
  void check_no_router_bias(const TensorRef& tensor) const {
    const Family& family = *architecture_.family;
    if (!is_router_bias(tensor.name) || has_router_bias(family) || is_optimizer_tensor(tensor.name)) return;
    if (from_.dense_naming == &family.naming && target_.keep_unknown) return;
    fail(ErrorCode::NoSpelling, {{}, tensor.name},
         "'{}' {} {} is a bias of the router that is not zero, and models of type {} have none: without it other "
         "experts would be chosen. --from-config FILE names a config.json of a type whose routers have one; --scope "
         "experts renames the experts alone",
         tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape), architecture_.model_type);
  }

  // ---- words ------------------------------------------------------------------------------------

  /// What sees beside a language model is no stranger, but no trainer's model has a place for it.
  std::string words_about_unknown(std::string_view name) const {
    constexpr std::string_view kKeep = "--unknown keep lets it travel beside the model, and come back";
    if (const BesidePart* const part = beside_part(*architecture_.family, name))
      return fmt::format(
          "is a part of what sees, hears or talks beside the language model ('{}*'), which the target takes alone; {}; "
          "--drop vision leaves it out, and --fill-from SRC brings it back later",
          part->root, kKeep);
    return fmt::format("is no tensor that a model of type {} is known to have{}; {}", architecture_.model_type,
                       words_about_layer(name), kKeep);
  }

  /// A number of layers that is wrong makes known tensors unknown: those of layers behind the last one, and those of
  /// multi-token prediction, which may be numbered on from there.
  std::string words_about_layer(std::string_view name) const {
    const std::string before = with_root(from_.dense_root, from_.dense_naming->layers);
    if (!name.starts_with(before)) return {};
    const std::string_view behind = name.substr(before.size());
    const std::size_t digits = std::min(behind.find_first_not_of("0123456789"), behind.size());
    const auto layer = parse_number<i64>(behind.substr(0, digits));
    if (!layer) return {};
    const i64 layers = architecture_.layers;
    if (*layer >= layers) return fmt::format(", as config.json says num_hidden_layers {}", layers);
    bool of_mtp = false;
    for_each_row(*from_.dense_naming, [&](const DenseRow& row) {
      of_mtp = of_mtp ||
               (row.place == Place::Mtp && behind.substr(digits).ends_with("." + print_tail(row, TensorKind::Weight)));
    });
    return of_mtp ? fmt::format(", as config.json says num_hidden_layers {}, and {} is none of MTP", layers, *layer)
                  : std::string();
  }

  void count(const DenseRow& row, const LayerId&, const DraftOutput& output,
             const std::vector<const DenseMatrix*>& matrices) {
    std::set<std::size_t> tensors;
    for (const DenseMatrix* matrix : matrices) tensors.insert(matrix->matrix.tensor);
    if (output.compute) return;
    if (tensors.size() > 1)
      ++fused_;
    else if (row.num_roles < roles_in_.at(*tensors.begin()).size())
      ++split_;
    else
      ++renamed_;
  }

  void say_what_happens() {
    const bool dense = from_.layout.is_dense();
    std::string text = fmt::format("{}{} tensors renamed, {} made by fusing, {} by splitting",
                                   dense ? "" : "outside of the experts: ", renamed_, fused_, split_);
    if (computed_ > 0) text += fmt::format(", {} computed", computed_);
    if (!from_.copies.empty())
      text += fmt::format(", {} dropped (copies of the embedding or the head; their bytes are compared first)",
                          from_.copies.size());
    if (unknown_ > 0) text += fmt::format(", {} kept that no map knows", unknown_);
    plan_.notes.push_back(std::move(text));
    if (!from_.wrapper.empty())
      plan_.notes.push_back(
          fmt::format("all keys of the model begin with '{}', which is no part of it and is taken off", from_.wrapper));
    if (!left_out_.empty())
      plan_.notes.push_back(
          fmt::format("the record (hf_copies) says that the model had no copy '{}', so the output has none",
                      fmt::join(left_out_, "' and no '")));
    if (zeros_ > 0)
      plan_.notes.push_back(
          fmt::format("{} biases of routers, such as '{}', are written as zeros: {} asks for them unless its "
                      "configuration says load_balance_coeff=None, and models of type {} have none. Once they are "
                      "trained, there is no way back for them",
                      zeros_, first_zeros_, target_.naming->name, architecture_.model_type));
    say_what_is_idle();
  }

  void say_what_is_idle() {
    const IdleTensor* bias = nullptr;
    const IdleTensor* made = nullptr;
    i64 biases = 0;
    for (const IdleTensor& idle : from_.idle) {
      (idle.if_zero ? bias : made) = &idle;
      biases += idle.if_zero ? 1 : 0;
    }
    if (bias != nullptr)
      plan_.notes.push_back(
          fmt::format("{} biases of routers, such as '{}', are all zero and left out: models of type {} have none",
                      biases, name_of(bias->tensor), architecture_.model_type));
    if (made != nullptr)
      plan_.notes.push_back(fmt::format("{} tensors that are no weights, such as '{}', are left out",
                                        std::ssize(from_.idle) - biases, name_of(made->tensor)));
  }

  const Inventory& inventory_;
  const Recognition& from_;
  const Architecture& architecture_;
  const DenseTarget& target_;
  DraftOutputs& outputs_;
  Plan& plan_;
  std::map<LayerId, Parts> layers_;
  std::set<const DenseMatrix*> used_;
  /// The roles that a source's tensor has, by its number.
  std::map<std::size_t, std::set<DenseRole>> roles_in_;
  /// Copies that the target's naming has and the record does not list.
  std::vector<std::string> left_out_;
  i64 renamed_ = 0, fused_ = 0, split_ = 0, computed_ = 0, unknown_ = 0, zeros_ = 0;
  std::string first_zeros_;
};

}  // namespace

void add_dense_outputs(const Inventory& inventory, const Recognition& from, const DenseTarget& target,
                       DraftOutputs& outputs, Plan& plan) {
  DenseWriter(inventory, from, target, outputs, plan).run();
}

void reorder_dense(const Inventory& inventory, const Recognition& from, const Glu& glu,
                   std::vector<DraftOutput>& drafts) {
  std::multimap<std::size_t, const DenseMatrix*> parts;
  for (const DenseMatrix& matrix : from.dense)
    if (matrix.role == DenseRole::MlpGate || matrix.role == DenseRole::MlpUp)
      parts.emplace(matrix.matrix.tensor, &matrix);
  for (DraftOutput& draft : drafts) {
    const TensorRef& tensor = inventory.tensors[draft.origin];
    if (is_optimizer_tensor(tensor.name))
      fail_asking(
          {"--optimizer"}, ErrorCode::NoSpelling, {{}, tensor.name},
          "'{}': an optimizer's state of a dense model does not follow its weights into another order; leave it out "
          "with --optimizer drop",
          tensor.name);
    const auto [first, last] = parts.equal_range(draft.origin);
    if (first != last) draft.moves.clear();
    for (auto part = first; part != last; ++part) {
      const Matrix& matrix = part->second->matrix;
      const i64 before = dense_block_rows(from.layout.glu, matrix.rows, tensor.name);
      const i64 after = dense_block_rows(glu, matrix.rows, tensor.name);
      Matrix to = matrix;
      to.tensor = 0;
      to.place.block_rows = after;
      to.place.block_step = 2 * after * matrix.place.row_step;
      if (part->second->role == DenseRole::MlpUp) to.place.offset += (after - before) * matrix.place.row_step;
      append_matrix_moves(matrix, to, draft.moves);
    }
  }
}

}  // namespace glu_ckpt
