#include "command.hpp"

#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cli/run.hpp"
#include "core/fail.hpp"
#include "python_error.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

using Clock = std::chrono::steady_clock;

/// How often Python looks at signals and progress.
constexpr auto kInterval = std::chrono::milliseconds(100);

/// One line of --progress json.
struct ProgressLine {
  std::string phase;
  i64 bytes = 0;
  i64 total = 0;
  double seconds = 0;
  std::string bottleneck;
};

/// What the command's thread and the caller's tell each other. The command waits at the beginning and the end of a
/// stage, and for a warning, until Python has seen it: so what Python raises there stops it before it goes on.
class Conversation final : public Observer {
 public:
  void stage_begins(std::string_view title, i64 bytes) override {
    std::unique_lock lock(mutex_);
    line_ = {std::string(title), 0, bytes, 0, {}};
    begun_ = Clock::now();
    working_ = true;
    told_.push_back(now());
    wait_until_told(lock);
  }

  void advance(i64 bytes, std::string_view bottleneck) override {
    const std::lock_guard lock(mutex_);
    line_.bytes += bytes;
    if (line_.bottleneck != bottleneck) line_.bottleneck = bottleneck;
    moved_ = true;
  }

  void stage_ends() override {
    std::unique_lock lock(mutex_);
    working_ = false;
    told_.push_back(now());
    wait_until_told(lock);
  }

  void warn(std::string_view sentence) override {
    std::unique_lock lock(mutex_);
    warnings_.emplace_back(sentence);
    wait_until_told(lock);
  }

  /// The command's thread: nothing more will come.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  /// The caller's thread: waits for something to tell, the interval or the end. False at the end.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kInterval, [&] { return ended_ || asked_ != seen_; });
    shown_ = asked_;
    return !ended_;
  }

  std::optional<std::string> next_warning() {
    const std::lock_guard lock(mutex_);
    return next(warnings_);
  }

  std::optional<ProgressLine> next_line() {
    const std::lock_guard lock(mutex_);
    if (auto line = next(told_)) return line;
    if (!working_ || !std::exchange(moved_, false)) return std::nullopt;
    return now();
  }

  /// The caller's thread has seen what there was when wait() returned.
  void go_on() {
    const std::lock_guard lock(mutex_);
    seen_ = shown_;
    changed_.notify_all();
  }

 private:
  void wait_until_told(std::unique_lock<std::mutex>& lock) {
    const i64 ticket = ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return seen_ >= ticket; });
  }

  ProgressLine now() const {
    ProgressLine line = line_;
    line.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    return line;
  }

  template <typename Item>
  static std::optional<Item> next(std::deque<Item>& items) {
    if (items.empty()) return std::nullopt;
    std::optional<Item> item = std::move(items.front());
    items.pop_front();
    return item;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ProgressLine> told_;
  std::deque<std::string> warnings_;
  ProgressLine line_;
  Clock::time_point begun_;
  /// Things that the command waited for, those that Python is being shown, and those that it has seen.
  i64 asked_ = 0;
  i64 shown_ = 0;
  i64 seen_ = 0;
  bool working_ = false;
  bool moved_ = false;
  bool ended_ = false;
};

nb::dict to_dict(const ProgressLine& line) {
  nb::dict dict;
  dict["phase"] = line.phase;
  dict["bytes"] = line.bytes;
  dict["total"] = line.total;
  dict["seconds"] = line.seconds;
  dict["bottleneck"] = line.bottleneck.empty() ? nb::none() : nb::object(nb::cast(line.bottleneck));
  return dict;
}

/// Lets Python see signals, warnings and progress. Throws what they raise.
void tell_python(Conversation& conversation, const nb::object& on_progress, const nb::object& on_warning) {
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  while (const auto sentence = conversation.next_warning()) on_warning(*sentence);
  while (const auto line = conversation.next_line())
    if (!on_progress.is_none()) on_progress(to_dict(*line));
}

}  // namespace

std::string text_of(const nb::bytes& bytes) {
  std::string text(bytes.c_str(), bytes.size());
  if (text.find('\0') != text.npos) throw nb::value_error("embedded null byte");
  return text;
}

std::vector<std::string> texts_of(const nb::list& words) {
  std::vector<std::string> texts;
  for (const nb::handle word : words) texts.push_back(text_of(nb::cast<nb::bytes>(word)));
  return texts;
}

cli::Options parse_command(const std::vector<std::string>& words) {
  std::vector<const char*> arguments{"glu-ckpt"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  cli::Options options;
  if (!cli::parse_options(static_cast<int>(arguments.size()), arguments.data(), options))
    fail(ErrorCode::Usage, {}, "help and version are for the command line");
  options.json = true;
  return options;
}

std::string run_command(std::vector<std::string> words, nb::object on_progress, nb::object on_warning) {
  Conversation conversation;
  StopToken stop;
  cli::Caller caller{&conversation, &stop, {}};
  cli::Options options = parse_command(words);
  options.caller = &caller;
  std::optional<Error> fault;
  std::thread command([&] {
    try {
      (void)options.execute(options);
    } catch (...) {
      fault = current_error();
    }
    conversation.end();
  });
  std::optional<nb::python_error> raised;
  for (bool working = true; working;) {
    {
      const nb::gil_scoped_release without_gil;
      working = conversation.wait();
    }
    try {
      if (!raised) tell_python(conversation, on_progress, on_warning);
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      stop.request();
    }
    conversation.go_on();
  }
  {
    const nb::gil_scoped_release without_gil;
    command.join();
  }
  if (raised) throw std::move(*raised);
  if (!fault) return caller.out;
  set_python_error(*fault, caller.out);
  nb::raise_python_error();
}

}  // namespace glu_ckpt::python
