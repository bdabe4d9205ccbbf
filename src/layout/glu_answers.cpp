#include "layout/glu_answers.hpp"

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kByRecord = "record";
constexpr std::string_view kByArguments = "arguments";
constexpr std::string_view kByFile = "megatron_args.txt";

std::string said_by(std::string_view by) {
  return by == kByArguments ? "the trainer's saved arguments say" : fmt::format("{} says", by);
}

/// Says what to do about a record that is wrong. One that has a digest was written by a conversion, and `stamp
/// --remove` leaves it where it is.
std::string_view way_past(const Record& record) {
  return record.contains("digest") ? "if the record is wrong, though a conversion wrote it, put glu_ckpt.json elsewhere"
                                   : "if the record is wrong, `glu-ckpt stamp PATH --remove` takes it out";
}

}  // namespace

GluAnswers::GluAnswers(const Record& record, const SourceAnswers& answers) : record_(record), answers_(answers) {
  for (const char* const key : {"glu", "shared_glu", "optimizer_glu"}) (void)recorded(key);
}

GluAnswer GluAnswers::about_weights(const ArgumentOrders& said) const {
  return settled(answers_.glu, "glu", "glu", said);
}

GluAnswer GluAnswers::about_shared(const ArgumentOrders& said) const {
  return settled(answers_.shared_glu, "shared-glu", "shared_glu", said);
}

std::optional<GluAnswer> GluAnswers::about_states() const {
  const std::optional<Glu> known = recorded("optimizer_glu");
  if (!answers_.optimizer_glu && !known) return std::nullopt;
  return GluAnswer{answers_.optimizer_glu, known, kByRecord, "optimizer-glu", "optimizer_glu"};
}

void GluAnswers::check_agreement(const GluAnswer& answer) const {
  if (!answer.asked || !answer.recorded || *answer.asked == *answer.recorded) return;
  const bool by_record = answer.by == kByRecord;
  conflict(answer,
           fmt::format("{} {}", by_record ? "the record says" : said_by(answer.by), to_string(*answer.recorded)),
           by_record              ? fmt::format("; {}", way_past(record_))
           : answer.by == kByFile ? "; if megatron_args.txt is wrong, mend it or remove it"
                                  : "");
}

void GluAnswers::conflict(const GluAnswer& answer, const std::string& other, std::string_view way_on) const {
  fail(ErrorCode::GluConflict, {}, "{}{} says {}, but {}. Both cannot be true; find out which one is{}",
       answers_.option_prefix, answer.option, to_string(*answer.asked), other, way_on);
}

std::string GluAnswers::name_of(const GluAnswer& answer) const {
  if (answer.asked) return fmt::format("{}{}", answers_.option_prefix, answer.option);
  return answer.by == kByRecord      ? "the record"
         : answer.by == kByArguments ? "the trainer's saved argument"
                                     : std::string(answer.by);
}

/// The record knows what was converted since the trainer saved its arguments. A megatron_args.txt is no part of the
/// checkpoint, and may be another run's: it must contradict neither.
GluAnswer GluAnswers::settled(const std::optional<Glu>& asked, std::string_view option, const std::string& key,
                              const ArgumentOrders& said) const {
  GluAnswer answer{asked, std::nullopt, kByRecord, option, key};
  if (record_.contains(key) || (said.trained.empty() && said.listed.empty())) {
    answer.recorded = recorded(key);
    if (answer.recorded && !said.listed.empty() && parse_glu(said.listed) != *answer.recorded)
      fail(ErrorCode::GluConflict, {},
           "the record says {}, but {} {}. Both cannot be true of these tensors; find out which one is. If the record "
           "is right, mend {} or put it elsewhere; {}",
           to_string(*answer.recorded), said_by(kByFile), said.listed, kByFile, way_past(record_));
    return answer;
  }
  answer.by = said.trained.empty() ? kByFile : kByArguments;
  answer.recorded = parse_glu(said.trained.empty() ? said.listed : said.trained);
  if (!said.listed.empty() && parse_glu(said.listed) != *answer.recorded)
    fail(ErrorCode::GluConflict, {},
         "{} {}, but {} {}. Both cannot be true of these tensors; find out which one is. Where the saved ones are "
         "right, mend {} or put it elsewhere",
         said_by(kByArguments), said.trained, said_by(kByFile), said.listed, kByFile);
  return answer;
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
