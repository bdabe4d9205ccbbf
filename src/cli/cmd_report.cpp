#include <fmt/format.h>

#include "cli/session.hpp"
#include "core/json.hpp"
#include "format/check_apart.hpp"
#include "io/staged_dir.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

std::string report_json(const Options& options, const HtmlReport& made, const std::vector<std::string>& warnings) {
  JsonWriter json;
  json.begin_object().field("output", options.report_file).field("bytes", static_cast<i64>(made.html.size()));
  json.key("equal");
  if (made.diff)
    json.value(made.diff->equal);
  else
    json.null();
  json.key("warnings").begin_array();
  for (const std::string& warning : warnings) json.value(warning);
  return json.end_array().end_object().text() + "\n";
}

std::string report_text(const Options& options, const HtmlReport& made) {
  const std::string size = report::size_text(static_cast<i64>(made.html.size()));
  return fmt::format("{}: {}{}\n", report::printable(options.report_file), size,
                     !made.diff         ? ""
                     : made.diff->equal ? "; A and B are equal"
                                        : "; A and B are different");
}

}  // namespace

HtmlReport write_report(const Options& options, const Session& session) {
  std::optional<std::filesystem::path> b;
  if (!options.output.empty()) b = options.output;
  check_apart(options.report_file, *open_source(options.input));
  if (b) check_apart(options.report_file, *open_source(*b));
  // Refused before anything is read; nothing is left where a run is killed later.
  (void)StagedFile(options.report_file, options.overwrite_report);
  HtmlReport made = html_report(options.input, b, options.report, session.run());
  replace_small_file(options.report_file, made.html);
  return made;
}

ExitStatus cmd_report(const Options& options) {
  const Session session(options);
  const HtmlReport made = write_report(options, session);
  if (options.json)
    print_out(options, report_json(options, made, session.warnings()));
  else if (!options.quiet)
    print_out(options, report_text(options, made));
  return made.diff && !made.diff->equal ? ExitStatus::Differs : ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
