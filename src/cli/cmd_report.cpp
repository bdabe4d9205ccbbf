#include <fmt/format.h>

#include <ctime>

#include "cli/run.hpp"
#include "cli/session.hpp"
#include "convert/check_output.hpp"
#include "core/json.hpp"
#include "format/check_apart.hpp"
#include "io/staged_dir.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// "2026-11-27 17:30 UTC: glu-ckpt report A B --html page.html"
std::string made_by(const Options& options) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::string text = fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC: glu-ckpt", utc.tm_year + 1900, utc.tm_mon + 1,
                                 utc.tm_mday, utc.tm_hour, utc.tm_min);
  for (const std::string& word : options.words) text += " " + quoted(word);
  return text;
}

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
  for (const SourceAnswers& answers : {options.report.a, options.report.b})
    check_apart_from_inputs(options.report_file, answers);
  // Refused before anything is read; nothing is left where a run is killed later.
  (void)StagedFile(options.report_file, options.overwrite_report);
  HtmlReportOptions asked = options.report;
  asked.made_by = made_by(options);
  HtmlReport made = html_report(options.input, b, asked, session.run());
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
