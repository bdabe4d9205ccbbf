#include "model/known_orders.hpp"

#include <algorithm>

#include "layout/unknown_orders.hpp"

namespace glu_ckpt {
namespace {

/// The option that would say in which order the block's FC1 holds gate and up, behind its prefix.
std::string option_about(const ExpertBlock& block) {
  if (block.set == ExpertSet::Shared) return "shared-glu";
  return block.is_optimizer_state() ? "optimizer-glu" : "glu";
}

/// Names the tensors that the option is about.
std::string_view what_is_in(std::string_view option) {
  return option == "glu" ? "FC1" : option == "shared-glu" ? "the shared expert's FC1" : "the optimizer's state of FC1";
}

void add_unknown(const Checkpoint& checkpoint, const std::string& option_prefix, UnknownOrders& unknown) {
  std::vector<std::string> options;
  for (const std::string& answer : missing_answers(checkpoint.recognition)) options.push_back(option_prefix + answer);
  unknown.add(checkpoint.source->path().string(), options);
}

}  // namespace

std::vector<std::string> missing_answers(const Recognition& recognition) {
  std::vector<std::string> missing;
  for (const ExpertBlock& block : recognition.blocks)
    if (block.glu.kind == Glu::Kind::Unknown && std::ranges::find(missing, option_about(block)) == missing.end())
      missing.push_back(option_about(block));
  if (recognition.layout.is_dense() && recognition.layout.glu.kind == Glu::Kind::Unknown) missing.emplace_back("glu");
  // An order that is unknown of the weights is unknown of their states, and one answer is for both.
  if (std::ranges::find(missing, "glu") != missing.end()) std::erase(missing, "optimizer-glu");
  return missing;
}

std::vector<std::string> missing_answer_texts(const Recognition& recognition, const std::string& option_prefix) {
  std::vector<std::string> texts;
  for (const std::string& answer : missing_answers(recognition))
    texts.push_back(
        fmt::format("the order of gate and up in {} is unknown: say {}{} contiguous|interleaved:K, or record it with "
                    "`glu-ckpt stamp`, which writes it into the checkpoint",
                    what_is_in(answer), option_prefix, answer));
  return texts;
}

bool has_unknown_glu(const Recognition& recognition) { return !missing_answers(recognition).empty(); }

void require_known_glu(const Checkpoint& checkpoint, const ExpertBlock& block, const std::string& option_prefix) {
  if (block.glu.kind != Glu::Kind::Unknown) return;
  UnknownOrders unknown;
  unknown.add(checkpoint.source->path().string(), {option_prefix + option_about(block)});
  unknown.check();
}

void require_known_glu(const Checkpoint& checkpoint, const std::string& option_prefix) {
  UnknownOrders unknown;
  add_unknown(checkpoint, option_prefix, unknown);
  unknown.check();
}

void require_known_glu(const Checkpoint& a, const std::string& a_prefix, const Checkpoint& b,
                       const std::string& b_prefix) {
  UnknownOrders unknown;
  add_unknown(a, a_prefix, unknown);
  add_unknown(b, b_prefix, unknown);
  unknown.check();
}

}  // namespace glu_ckpt
