#include <algorithm>
#include <array>

#include "convert/target.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "families/architecture.hpp"

namespace glu_ckpt {
namespace {

/// Layers of one stack that follow one another and are alike.
struct FormRun {
  /// The text in front of the layer's number in its label.
  std::string before;
  i64 first = 0;
  i64 last = 0;
  ExpertForm form;
};

[[noreturn]] void fail_forms(std::string_view text) {
  fail(ErrorCode::RecordInvalid, {}, "the record's entry hf_forms has '{}', which is no LAYERS/EXPERTS/GLU", text);
}

std::string print_run(const FormRun& run) {
  const std::string last = run.last > run.first ? fmt::format("-{}", run.last) : std::string();
  return fmt::format("{}{}{}/{}/{}", run.before, run.first, last, to_string(run.form.experts),
                     run.form.glu ? to_string(*run.form.glu) : "none");
}

FormRun parse_run(std::string_view text) {
  const std::size_t behind_layers = text.find('/'), behind_experts = text.rfind('/');
  if (behind_layers == text.npos || behind_layers == behind_experts) fail_forms(text);
  const std::string_view layers = text.substr(0, behind_layers), glu = text.substr(behind_experts + 1);
  const std::string_view experts = text.substr(behind_layers + 1, behind_experts - behind_layers - 1);
  const std::size_t number = layers.find_last_not_of("0123456789-") + 1;
  const std::string_view range = layers.substr(number);
  const std::size_t dash = std::min(range.find('-'), range.size());
  const auto first = parse_number<i64>(range.substr(0, dash));
  const auto last = dash == range.size() ? first : parse_number<i64>(range.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || *last >= kMaxLayers) fail_forms(text);
  FormRun run{std::string(layers.substr(0, number)), *first, *last, {}};
  try {
    run.form.experts = parse_experts(experts);
    if (glu != "none") run.form.glu = parse_glu(glu);
  } catch (const Error&) {
    fail_forms(text);
  }
  return run;
}

}  // namespace

std::string print_expert_forms(const std::vector<ExpertBlock>& blocks) {
  std::vector<FormRun> runs;
  bool alike = true;
  for (const ExpertBlock& block : blocks) {
    if (block.set != ExpertSet::Routed || block.is_optimizer_state()) continue;
    std::string label = layer_label(block);
    label.resize(label.size() - std::to_string(block.layer).size());
    const bool ordered = block.glu.kind != Glu::Kind::None && block.glu.kind != Glu::Kind::Unknown;
    const ExpertForm form{block.experts, ordered ? std::optional(block.glu) : std::nullopt};
    alike = alike && (runs.empty() || runs.front().form == form);
    if (!runs.empty() && runs.back().before == label && runs.back().last + 1 == block.layer && runs.back().form == form)
      runs.back().last = block.layer;
    else
      runs.push_back({std::move(label), block.layer, block.layer, form});
  }
  if (alike) return {};
  std::string text;
  for (const FormRun& run : runs) text += (text.empty() ? "" : " ") + print_run(run);
  return text;
}

ExpertForms parse_expert_forms(std::string_view text) {
  ExpertForms forms;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const FormRun run = parse_run(text.substr(begin, end - begin));
    for (i64 layer = run.first; layer <= run.last; ++layer) forms[fmt::format("{}{}", run.before, layer)] = run.form;
    begin = end + 1;
  }
  return forms;
}

}  // namespace glu_ckpt
