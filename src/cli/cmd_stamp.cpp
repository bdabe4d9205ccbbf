#include <fmt/format.h>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt::cli {

int cmd_stamp(const Options& options) {
  if (!options.from.glu && !options.from.shared_glu && !options.from.optimizer_glu)
    fail(ErrorCode::Usage, {}, "stamp needs --glu, --shared-glu or --optimizer-glu: what is it that you know?");
  SourceAnswers answers = options.from;
  answers.option_prefix = "--";
  const Opened opened = open_model(options.input, answers);
  const Recognition& recognition = opened.recognition;
  if (recognition.blocks.empty())
    fail(ErrorCode::NoExperts, {options.input, {}}, "{}: no expert tensors were recognized", options.input);
  Record record = opened.source->record();
  record["version"] = GLU_CKPT_VERSION;
  if (recognition.naming_settled) record["naming"] = recognition.layout.naming;
  record["experts"] = recognition.layout.experts;
  record["glu"] = to_string(recognition.layout.glu);
  if (recognition.layout.shared_glu) record["shared_glu"] = to_string(*recognition.layout.shared_glu);
  if (recognition.layout.optimizer_glu) record["optimizer_glu"] = to_string(*recognition.layout.optimizer_glu);
  const std::string& iteration = opened.source->structure().iteration_dir;
  write_record(
      iteration.empty() ? std::filesystem::path(options.input) : options.input / std::filesystem::path(iteration),
      record);
  const std::string naming = recognition.naming_settled ? recognition.layout.naming : "no naming";
  const std::string said =
      fmt::format("{}: recorded {}, {}, {}", options.input, naming, record["experts"], record["glu"]);
  if (options.json)
    print_out(JsonWriter()
                  .begin_object()
                  .field("path", options.input)
                  .field("naming", naming)
                  .field("experts", record["experts"])
                  .field("glu", record["glu"])
                  .end_object()
                  .text() +
              "\n");
  else if (!options.quiet)
    print_out(said + "\n");
  return 0;
}

}  // namespace glu_ckpt::cli
