#include <fmt/format.h>

#include "cli/session.hpp"
#include "core/json.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_stamp(const Options& options) {
  SourceAnswers answers = options.from;
  answers.option_prefix = "--";
  const Stamped stamped = stamp(options.input, answers);
  if (options.json)
    print_out(JsonWriter()
                  .begin_object()
                  .field("path", options.input)
                  .field("naming", stamped.naming)
                  .field("experts", stamped.experts)
                  .field("glu", stamped.glu)
                  .end_object()
                  .text() +
              "\n");
  else if (!options.quiet)
    print_out(fmt::format("{}: recorded {}, {}, {}\n", options.input, stamped.naming, stamped.experts, stamped.glu));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
