#include "layout/glu_answers.hpp"

#include "core/fail.hpp"

namespace glu_ckpt {

GluAnswers::GluAnswers(const Record& record, const SourceAnswers& answers) : record_(record), answers_(answers) {
  for (const char* const key : {"glu", "shared_glu", "optimizer_glu"}) (void)recorded(key);
}

GluAnswer GluAnswers::about_weights(const std::string& trained) const {
  return {answers_.glu, settled("glu", trained), "glu", "glu"};
}

GluAnswer GluAnswers::about_shared(const std::string& trained) const {
  return {answers_.shared_glu, settled("shared_glu", trained), "shared-glu", "shared_glu"};
}

std::optional<GluAnswer> GluAnswers::about_states() const {
  const std::optional<Glu> known = recorded("optimizer_glu");
  if (!answers_.optimizer_glu && !known) return std::nullopt;
  return GluAnswer{answers_.optimizer_glu, known, "optimizer-glu", "optimizer_glu"};
}

void GluAnswers::check_agreement(const GluAnswer& answer) const {
  if (!answer.asked || !answer.recorded || *answer.asked == *answer.recorded) return;
  const bool by_record = record_.contains(answer.key);
  conflict(answer, fmt::format("{} {}", by_record ? "the record says" : "the trainer's saved arguments say",
                               to_string(*answer.recorded)));
}

void GluAnswers::conflict(const GluAnswer& answer, const std::string& other) const {
  fail(ErrorCode::GluConflict, {}, "{}{} says {}, but {}. Both cannot be true; find out which one is",
       answers_.option_prefix, answer.option, to_string(*answer.asked), other);
}

std::string_view GluAnswers::source_of(const GluAnswer& answer) const {
  if (answer.asked) return "option";
  return record_.contains(answer.key) ? "record" : "arguments";
}

std::string GluAnswers::name_of(const GluAnswer& answer) const {
  if (answer.asked) return fmt::format("{}{}", answers_.option_prefix, answer.option);
  return record_.contains(answer.key) ? "the record" : "the trainer's saved argument";
}

std::optional<Glu> GluAnswers::settled(const std::string& key, const std::string& trained) const {
  if (record_.contains(key) || trained.empty()) return recorded(key);
  return parse_glu(trained);
}

std::optional<Glu> GluAnswers::recorded(const std::string& key) const {
  const auto found = record_.find(key);
  if (found == record_.end() || found->second == "unknown" || found->second == "none") return std::nullopt;
  try {
    return parse_glu(found->second);
  } catch (const Error&) {
    fail(ErrorCode::RecordInvalid, {}, "the record's {} '{}' is not a glu arrangement", key, found->second);
  }
}

}  // namespace glu_ckpt
