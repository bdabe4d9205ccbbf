#include <algorithm>
#include <map>

#include "convert/judge.hpp"
#include "core/compute.hpp"
#include "core/fail.hpp"
#include "layout/element_grid.hpp"
#include "model/locate_errors.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "quant/find_quantized.hpp"

namespace glu_ckpt {
namespace {

std::vector<u32> column_groups(const Source& source, const Matrix& matrix) {
  std::vector<u32> groups(static_cast<std::size_t>(matrix.cols));
  source.read(matrix.tensor, matrix.place.offset, std::as_writable_bytes(std::span(groups)));
  return groups;
}

void check_one_order(const Source& source, const Matrix& gate, const Matrix& up) {
  const std::vector<u32> of_gate = column_groups(source, gate), of_up = column_groups(source, up);
  const auto [first, second] = std::ranges::mismatch(of_gate, of_up);
  if (first == of_gate.end()) return;
  const auto& tensors = source.inventory().tensors;
  fail(ErrorCode::NotExact, {{}, tensors[up.tensor].name},
       "'{}' has column {} in group {}, and '{}' in group {} (expert {}): one tensor of gate and up has one order of "
       "columns for all of its rows. Keep gate and up apart (--glu split)",
       tensors[gate.tensor].name, first - of_gate.begin(), *first, tensors[up.tensor].name, *second, up.expert);
}

/// Refuses computed tensors of which an element would not come back. They are small, and read here.
void check_computed(const Source& source, const Plan& plan) {
  for (const Compute& computed : plan.computes) {
    const TensorRef& tensor = source.inventory().tensors[computed.src];
    const OutputTensor& output = plan.outputs[computed.dst];
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
    source.read(computed.src, 0, bytes);
    if (const i64 lost = first_lost(computed.op, tensor.dtype, bytes, output.dtype); lost >= 0)
      fail(ErrorCode::NotExact, {{}, tensor.name},
           "'{}': element {} does not come back from '{}', which is computed as {} in {}", tensor.name, lost,
           output.name, to_string(computed.op), dtype_name(output.dtype));
  }
}

/// Refuses codes and scales that quantization_config contradicts, where they are as their software stores them.
void check_quantized(const Source& source, const Recognition& model, const ModelHints& hints) {
  const QuantConfig config = quant_config_of(source, hints);
  const bool as_written = std::ranges::all_of(model.blocks, [](const ExpertBlock& block) {
    return block.codes == TensorKind::Blocks || (block.experts == Experts::Indexed && !block.fused);
  });
  if (!config.method.empty() && as_written && holds_codes(model.blocks))
    find_quantized(source.inventory(), config, weight_axes(model.blocks));
}

/// Refuses to put gate and up of INT4 into one tensor where their columns are reordered in ways of their own
/// (`weight_g_idx`).
void check_column_groups(const Source& source, const Recognition& model, const Plan& plan) {
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const ExpertBlock& block = model.blocks[i];
    if (block.glu.kind != Glu::Kind::Split || !plan.experts[i].fused) continue;
    std::map<i64, const Matrix*> gates;
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == TensorKind::PackedGroupIndex && matrix.role == Role::Gate) gates[matrix.expert] = &matrix;
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == TensorKind::PackedGroupIndex && matrix.role == Role::Up)
        check_one_order(source, *gates.at(matrix.expert), matrix);
  }
}

/// Refuses a change of layout beside optimizer state that would stay in the old one.
void check_optimizer_parts(const Source& source, const ConvertOptions& options, const Plan& plan) {
  const LayoutAnswers &from = plan.from, &to = plan.to;
  const bool same =
      from.naming == to.naming && from.experts == to.experts && from.glu == to.glu && from.shared_glu == to.shared_glu;
  if (options.from.drop_optimizer) return;
  std::vector<std::string> texts = same ? std::vector<std::string>() : optimizer_part_texts(source);
  const Record& laid_out = source.info().laid_out_from;
  if (const auto left = laid_out.find("optimizer"); left != laid_out.end()) texts.push_back(left->second);
  for (const std::string& text : texts)
    fail(ErrorCode::OptimizerBuckets, {source.path().string(), {}}, "{}: {}", source.path().string(), text);
}

}  // namespace

void check_exact(const Conversion& conversion, const Plan& plan) {
  const Source& source = *conversion.source.source;
  const Recognition& model = conversion.source.recognition;
  const ConvertOptions& options = conversion.options;
  const std::string output = conversion.output.string();
  if (!plan.foreign_order.empty() && !options.allow_foreign_order)
    fail(ErrorCode::ForeignOrder, {output, {}},
         "{}: would load and compute something else. {}; --allow-foreign-order writes this one all the same, and the "
         "record says so",
         output, plan.foreign_order);
  check_optimizer_parts(source, options, plan);
  check_plan(source.inventory(), plan);
  locate_errors(source, [&] { check_quantized(source, model, conversion.source.hints); });
  check_computed(source, plan);
  locate_errors(source, [&] { check_column_groups(source, model, plan); });
}

}  // namespace glu_ckpt
