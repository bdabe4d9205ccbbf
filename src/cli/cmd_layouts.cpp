#include <algorithm>
#include <cctype>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// Names are written in both cases, and with either of '-' and '_'.
std::string folded(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) {
    return letter == '-' ? '_' : static_cast<char>(std::tolower(letter));
  });
  return text;
}

/// Returns the rows that have the word in their name, in a model_type or among the programs that load them.
std::vector<NamingSummary> chosen_rows(const std::string& word) {
  std::vector<NamingSummary> rows = naming_summaries();
  const std::string wanted = folded(word);
  const auto has = [&](const std::string& text) { return folded(text).find(wanted) != std::string::npos; };
  std::erase_if(rows, [&](const NamingSummary& row) {
    return !has(row.name) && !has(row.loads_in) &&
           std::ranges::none_of(row.model_types, [&](const std::string& type) { return has("hf:" + type); });
  });
  if (rows.empty())
    fail(ErrorCode::UnknownNaming, {},
         "layouts: no naming has '{}' in its name, its model types or the programs that "
         "load it; `glu-ckpt layouts` lists all of them",
         word);
  return rows;
}

}  // namespace

ExitStatus cmd_layouts(const Options& options) {
  const auto rows = chosen_rows(options.input);
  print_out(options, options.json ? report::layouts_json(rows) + "\n" : report::layouts_text(rows));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
