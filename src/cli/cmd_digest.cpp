#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/run.hpp"
#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "io/file.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// The characters that end a line, the one that escapes them, and what sha256sum puts behind that for each.
constexpr std::string_view kEscaped = "\n\r\\", kEscapes = "nr\\";

/// A digest and a path, as --check reads them. Where the path needs escapes, the line begins with a backslash.
std::string list_line(const Digest& digest, const std::string& path) {
  std::string escaped;
  for (const char c : path) {
    const std::size_t at = kEscaped.find(c);
    escaped += at == kEscaped.npos ? std::string(1, c) : std::string("\\") + kEscapes[at];
  }
  return fmt::format("{}{}  {}\n", escaped == path ? "" : "\\", to_string(digest), escaped);
}

/// Empty where it holds an escape that list_line() does not write.
std::string unescaped(std::string_view path) {
  std::string text;
  while (!path.empty()) {
    if (path.front() != '\\') {
      text += path.front();
      path.remove_prefix(1);
      continue;
    }
    const std::size_t at = path.size() > 1 ? kEscapes.find(path[1]) : kEscapes.npos;
    if (at == kEscapes.npos) return {};
    text += kEscaped[at];
    path.remove_prefix(2);
  }
  return text;
}

/// An option of an order speaks of every path, and the order may be that of one alone.
Error about_order(const Error& error, const Options& options, const std::string& path) {
  const bool is_given = options.from.glu || options.from.shared_glu;
  const bool is_order = error.code() == ErrorCode::GluConflict || error.code() == ErrorCode::NotDivisible;
  std::string way_on;
  if (error.code() == ErrorCode::UnknownGlu)
    way_on = fmt::format("An option speaks of all {} paths; `glu-ckpt stamp {} --glu ORDER` speaks of this one",
                         options.paths.size(), path);
  else if (is_order && is_given)
    way_on = fmt::format(
        "The option speaks of all {} paths. Leave it out, and record the order of each path that "
        "needs one with `glu-ckpt stamp PATH --glu ORDER`",
        options.paths.size());
  else
    return error;
  return Error(error.code(), fmt::format("{}. {}", error.what(), way_on), error.file(), error.tensor())
      .with_missing_options(error.missing_options());
}

/// A checkpoint of a list.
struct Listed {
  std::string path;
  CheckpointDigest found;
};

/// Compares the configurations of what has one digest, each with that of the first.
struct UnlikeConfigs {
  const Listed* a;
  const Listed* b;
  std::vector<ConfigDifference> differences;
};

std::vector<UnlikeConfigs> unlike_configs(const std::vector<Listed>& list) {
  std::vector<UnlikeConfigs> unlike;
  for (const Listed& one : list) {
    const auto first = std::ranges::find_if(list, [&](const Listed& other) {
      return other.found.digest == one.found.digest && !other.found.config.empty();
    });
    if (first == list.end() || &*first == &one) continue;
    if (auto differences = config_differences(first->found.config, one.found.config); !differences.empty())
      unlike.push_back({&*first, &one, std::move(differences)});
  }
  return unlike;
}

/// A digest and a path a line. One that cannot be read is an error of its own, and the others are read all the same.
ExitStatus print_all(const Options& options, const Session& session) {
  const bool is_list = options.paths.size() > 1;
  auto status = ExitStatus::Done;
  JsonWriter json;
  json.begin_object();
  std::vector<Listed> list;
  if (is_list) json.key("digests").begin_array();
  for (const std::string& path : options.paths) {
    try {
      const CheckpointDigest found = digest(path, options.from, session.run());
      if (found.contradicts_record())
        fail(ErrorCode::RecordContradicts, {path, {}},
             "{}: the record says {}, and the tensors have {}: they have changed since it was written", path,
             found.recorded, to_string(found.digest));
      if (!options.json) print_out(options, list_line(found.digest, path));
      if (is_list) json.begin_object().field("path", path);
      json.field("digest", to_string(found.digest)).field("tensors", found.digest.tensors);
      json.field("bytes", found.digest.bytes);
      if (is_list) json.end_object();
      list.push_back({path, found});
    } catch (...) {
      const Error error = current_error();
      if (!is_list || error.code() == ErrorCode::Interrupted) throw;
      Options one = options;
      one.source = path;
      status = std::max(status, report_error("glu-ckpt", about_order(error, options, path), one, options.json));
    }
  }
  if (is_list) json.end_array().key("config_differences").begin_array();
  for (const UnlikeConfigs& unlike : unlike_configs(list)) {
    if (session.run().observer != nullptr)
      session.run().observer->note(
          fmt::format("{} and {} have one digest, and config.json lets them compute differently: {}",
                      report::printable(unlike.a->path), report::printable(unlike.b->path),
                      to_sentence(unlike.differences, "the first", "the other")));
    for (const ConfigDifference& config : unlike.differences)
      json.begin_object()
          .field("path_a", unlike.a->path)
          .field("path_b", unlike.b->path)
          .field("field", config.field)
          .field("a", config.a)
          .field("b", config.b)
          .end_object();
  }
  if (is_list) json.end_array();
  if (options.json) print_out(options, json.end_object().text() + "\n");
  return status;
}

/// A line of a list.
struct ExpectedDigest {
  Digest digest;
  std::string path;
};

std::vector<ExpectedDigest> read_list(const std::string& file) {
  constexpr i64 kMaxListBytes = i64{16} << 20;
  const std::string text = read_small_file(file, kMaxListBytes, ErrorCode::Usage);
  std::vector<ExpectedDigest> list;
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const bool is_escaped = line.front() == '\\';
    if (is_escaped) line.remove_prefix(1);
    const std::size_t blank = line.find(' ');
    const std::size_t start = std::min(line.find_first_not_of(' ', blank), line.size());
    const std::string path = is_escaped ? unescaped(line.substr(start)) : std::string(line.substr(start));
    const auto digest = parse_digest(line.substr(0, blank));
    if (!digest || path.empty())
      fail(ErrorCode::Usage, {file, {}},
           "{}: line {} is not a digest and a path, as `glu-ckpt digest` prints them; of one checkpoint whose "
           "digest is noted, `glu-ckpt verify PATH gck2:...` says whether it has it",
           file, number);
    list.push_back({*digest, path});
  }
  // An empty list would pass as one whose checkpoints are all well.
  if (list.empty())
    fail(ErrorCode::Usage, {file, {}},
         "{}: has no line; `glu-ckpt digest PATH... >{}` writes the lines to compare with", file, file);
  return list;
}

ExitStatus check_list(const Options& options, const Session& session) {
  auto status = ExitStatus::Done;
  JsonWriter json;
  json.begin_object().key("checked").begin_array();
  for (const auto& [expected, path] : read_list(options.check_file)) {
    std::string word = "ok", found_text, fault;
    try {
      const Digest found = digest(path, options.from, session.run()).digest;
      found_text = to_string(found);
      if (!(found == expected)) word = "differs";
      if (!(found == expected) && status == ExitStatus::Done) status = ExitStatus::Differs;
    } catch (...) {
      // One that cannot be read is a finding about that line. A stop is none.
      const Error error = current_error();
      if (error.code() == ErrorCode::Interrupted) throw;
      word = "not read";
      fault = error.what();
      status = exit_status(error.code());
    }
    if (!options.json && (!options.quiet || word != "ok"))
      print_out(options, fmt::format("{}: {}{}\n", report::printable(path), word,
                                     fault.empty() ? "" : " (" + report::printable(fault) + ")"));
    json.begin_object().field("path", path).field("state", word).field("expected", to_string(expected));
    json.field("digest", found_text).field("error", fault).end_object();
  }
  json.end_array().field("ok", status == ExitStatus::Done);
  if (options.json) print_out(options, json.end_object().text() + "\n");
  return status;
}

}  // namespace

ExitStatus cmd_digest(const Options& options) {
  const Session session(options);
  if (options.paths.empty() && options.check_file.empty())
    fail(ErrorCode::Usage, {}, "digest takes one or more paths, or --check FILE");
  if (!options.paths.empty() && !options.check_file.empty())
    fail(ErrorCode::Usage, {},
         "--check takes the paths from the lines of {}: `glu-ckpt digest --check {}` without {}; "
         "`glu-ckpt verify {} gck2:...` compares one path with one digest",
         options.check_file, options.check_file, fmt::join(options.paths, " "), options.paths.front());
  if (!options.check_file.empty()) return check_list(options, session);
  return print_all(options, session);
}

}  // namespace glu_ckpt::cli
