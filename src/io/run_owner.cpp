#include "io/run_owner.hpp"

#include <fmt/format.h>

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

struct Run {
  ProcessName name;
  std::string since;
};

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> text{};
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&now, &utc));
  return text.data();
}

std::string print(const ProcessName& run) {
  return fmt::format("host {}\nboot {}\nspace {}\nprocess {}\nticks {}\nsince {}\n", run.host, run.boot, run.space,
                     run.process, run.ticks, time_now());
}

std::optional<Run> parse(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t blank = line.find(' '); blank != line.npos)
      values[line.substr(0, blank)] = line.substr(blank + 1);
  if (values["host"].empty() || values["process"].empty()) return std::nullopt;
  return Run{{values["host"], values["boot"], values["space"], values["process"], values["ticks"]}, values["since"]};
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
  if (const std::optional<Run> owner = read_owner(directory / kName))
    check_not_working(directory, *owner, name_this_process(), owned);
}

RunOwner::RunOwner(const fs::path& directory, Owned owned) : owned_(owned) {
  const fs::path path = directory / kName;
  check_free(directory, owned);
  if (const int error = remove_own(path, reason(owned)); error != 0) fail_errno(error, "remove", path);
  file_ = File::try_create(path);
  if (file_.is_open()) {
    const std::string text = print(name_this_process());
    file_.pwrite_exact(std::as_bytes(std::span(text)), 0);
    file_.sync();
    if (is_in_place()) return;
  }
  fail(ErrorCode::OutputBusy, {directory.string(), {}}, "{}: another run is {}; wait until it ends", directory.string(),
       work_of(owned));
}

int RunOwner::release() {
  const fs::path path = file_.path();
  bool is_ours = false;
  // Tried twice, as a file that stays for a failure of this look keeps the next run out.
  for (int tries = 0; tries < 2 && !is_ours; ++tries) try {
      is_ours = file_.is_open() && is_in_place();
    } catch (const Error&) {
    }
  // Closed first: a network file system keeps an open file under another name.
  file_ = {};
  return is_ours ? remove_own(path, reason(owned_)) : 0;
}

}  // namespace glu_ckpt
