#include "io/run_owner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "core/fail.hpp"
#include "core/process_name.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr i64 kMaxBytes = 4096;

/// The lines of a note: each begins with its word. A source's has the last two; the last one says that the run has
/// ended.
constexpr auto kWords =
    std::to_array<std::string_view>({"host", "boot", "space", "process", "ticks", "since", "output", "ended"});

struct Run {
  ProcessName name;
  std::string since, output, ended;
};

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> text{};
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&now, &utc));
  return text.data();
}

std::string print(const ProcessName& run, const fs::path& output) {
  std::string text = fmt::format("host {}\nboot {}\nspace {}\nprocess {}\nticks {}\nsince {}\n", run.host, run.boot,
                                 run.space, run.process, run.ticks, time_now());
  if (const std::string name = output.string(); !name.empty() && name.find('\n') == name.npos)
    text += fmt::format("output {}\n", name);
  return text;
}

std::optional<Run> parse(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t blank = line.find(' '); blank != line.npos)
      values[line.substr(0, blank)] = line.substr(blank + 1);
  if (values["host"].empty() || values["process"].empty()) return std::nullopt;
  return Run{{values["host"], values["boot"], values["space"], values["process"], values["ticks"]},
             values["since"],
             values["output"],
             values["ended"]};
}

/// Returns true for a note, and for what a power cut leaves of one: its beginning, and zeros behind it.
bool is_note(std::string_view text) {
  text = text.substr(0, text.find_last_not_of('\0') + 1);
  for (auto word = kWords.begin(); !text.empty(); ++word) {
    // The output is left out where its name has no place in a line.
    if (word != kWords.end() && *word == "output" && text.front() == kWords.back().front()) ++word;
    if (word == kWords.end()) return false;
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::string begin = std::string(*word) + " ";
    const bool is_torn = line.size() == text.size();
    if (!line.starts_with(begin) && !(is_torn && begin.starts_with(line))) return false;
    if (std::ranges::any_of(line, [](unsigned char c) { return c < ' '; })) return false;
    text.remove_prefix(is_torn ? text.size() : line.size() + 1);
  }
  return true;
}

/// Whoever consumes a source removes its note, and nothing else by its name.
void check_is_note(const fs::path& path) {
  const PathKind kind = link_kind(path);
  if (kind == PathKind::Missing) return;
  const std::string name = path.string();
  std::string found = "it is no regular file";
  if (kind == PathKind::File) {
    const File file = File::open_read(path);
    const i64 bytes = file.size();
    std::string text(static_cast<std::size_t>(std::min(bytes, kMaxBytes)), '\0');
    file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
    if (bytes <= kMaxBytes && is_note(text)) return;
    found = fmt::format("its {} bytes are something else", bytes);
  }
  fail(
      ErrorCode::SourceNeeded, {name, {}},
      "{}: --consume-source does not remove it: by its name it is the note of a run that consumes this source, but {}. "
      "Move it out of the source, or give it another name",
      name, found);
}

std::optional<Run> read_owner(const fs::path& path) {
  if (link_kind(path) != PathKind::File) return std::nullopt;
  try {
    return parse(read_small_file(path, kMaxBytes, ErrorCode::Io));
  } catch (const Error& error) {
    // Its run has just ended.
    if (error.code() == ErrorCode::NotFound) return std::nullopt;
    throw;
  }
}

std::string_view work_of(Owned owned) {
  return owned == Owned::Staging ? "writing this output" : "converting this source and removing its files";
}

Own reason(Owned owned) { return owned == Owned::Staging ? Own::InStaging : Own::RunNote; }

void check_not_working(const fs::path& directory, const Run& run, const ProcessName& here, Owned owned) {
  if (!run.ended.empty()) return;
  const ProcessName& owner = run.name;
  if (owner.boot == here.boot && owner.space == here.space) {
    // Two runs of one process know of each other by their locks.
    const bool is_this = owner.process == here.process && owner.ticks == here.ticks;
    if (is_this || owner.ticks.empty() || start_of_process(owner.process) != owner.ticks) return;
    fail(ErrorCode::OutputBusy, {directory.string(), {}},
         "{}: another run is {} (process {} since {}); wait until it ends", directory.string(), work_of(owned),
         owner.process, run.since);
  }
  // The host was booted since, or it is another container of the same kernel, whose locks are seen here.
  if (owner.host == here.host) return;
  fail(ErrorCode::OutputBusy, {directory.string(), {}},
       "{}: a run on host {} (process {} since {}) is {}, or was killed there, which cannot be seen from host {}. Wait "
       "until it ends; if it runs no more, remove {}, and --resume goes on with what it has done",
       directory.string(), owner.host, owner.process, run.since, work_of(owned), here.host,
       (directory / RunOwner::kName).string());
}

}  // namespace

void RunOwner::check_free(const fs::path& directory, Owned owned) {
  if (owned == Owned::Source) check_is_note(directory / kName);
  if (const std::optional<Run> owner = read_owner(directory / kName))
    check_not_working(directory, *owner, name_this_process(), owned);
}

std::string RunOwner::why_missing(const fs::path& directory, std::string_view otherwise) {
  std::optional<Run> run;
  std::string partial;
  bool is_there = false;
  try {
    run = read_owner(directory / kName);
    if (!run || run->output.empty()) return std::string(otherwise);
    partial = run->output + ".partial";
    is_there = path_exists(partial);
  } catch (const Error&) {
    // What is missing is said all the same.
    return std::string(otherwise);
  }
  return fmt::format(
      "A run of `glu-ckpt convert --consume-source` (process {} on host {}, since {}) has removed files here after it "
      "wrote their tensors to {}{}. {}, the same command with --resume goes on: {} to {}",
      run->name.process, run->name.host, run->since, partial, is_there ? "" : " (which is not seen from here)",
      run->ended.empty() ? "If it works no more" : fmt::format("It stopped at {}", run->ended), directory.string(),
      run->output);
}

RunOwner::RunOwner(const fs::path& directory, Owned owned, const fs::path& output) : owned_(owned) {
  const fs::path path = directory / kName;
  check_free(directory, owned);
  if (const int error = remove_own(path, reason(owned)); error != 0) fail_errno(error, "remove", path);
  file_ = File::try_create(path);
  if (file_.is_open()) {
    const std::string text = print(name_this_process(), output);
    file_.pwrite_exact(std::as_bytes(std::span(text)), 0);
    file_.sync();
    if (is_in_place()) return;
  }
  fail(ErrorCode::OutputBusy, {directory.string(), {}}, "{}: another run is {}; wait until it ends", directory.string(),
       work_of(owned));
}

bool RunOwner::is_still_ours() const {
  // Tried twice, as a file that stays for a failure of this look keeps the next run out.
  for (int tries = 0; tries < 2; ++tries) try {
      return file_.is_open() && is_in_place();
    } catch (const Error&) {
    }
  return false;
}

int RunOwner::release() {
  const fs::path path = file_.path();
  const bool is_ours = is_still_ours();
  // Closed first: a network file system keeps an open file under another name.
  file_ = {};
  return is_ours ? remove_own(path, reason(owned_)) : 0;
}

void RunOwner::leave() {
  if (is_still_ours()) try {
      const std::string text = fmt::format("ended {}\n", time_now());
      file_.pwrite_exact(std::as_bytes(std::span(text)), file_.size());
      file_.sync();
    } catch (const Error&) {
    }
  file_ = {};
}

}  // namespace glu_ckpt
