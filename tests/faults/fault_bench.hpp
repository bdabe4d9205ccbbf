#pragma once
/// A small conversion through the library's convert(), on a file system in memory that fails or loses its power.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/error.hpp"
#include "support/memory_system.hpp"

namespace glu_ckpt::faults {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

/// Before a release every call is tried.
inline bool is_thorough() { return std::getenv("KILLS") != nullptr; }

/// The tests that fail at every call try one way at each, and go through the ways in turn: a build with sanitizers,
/// where conversions take four times as long, and one without begin with another way. Before a release the latter tries
/// all.
inline bool one_way_each() { return kSanitized || !is_thorough(); }
inline constexpr i64 kFirstWay = kSanitized ? 0 : 1;

/// Paths below a directory, and what is in the files; a directory's path ends in "/".
using Tree = std::map<std::string, std::string>;

/// One conversion of the source to `output`.
struct Target {
  std::string name;
  /// Below /disk.
  std::string output;
  /// With `overwrite`, another output is there, which is to be replaced.
  ConvertOptions options = {};
  /// On a file system that can do no more than POSIX asks: no direct writes, reservations, locks and exchanges.
  bool plain = false;
  /// On one that shares blocks.
  bool clones = false;
  /// Experts are codes with scales.
  bool coded = false;
  /// Only what is converted is another than in a neighbour's conversion: where KILLS does not ask for more, every 13th
  /// call is tried.
  bool sampled = false;
};

inline void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

/// To every format, from one safetensors directory of two shards.
const std::vector<Target>& all_targets();
std::string name_of_target(const testing::TestParamInfo<Target>& info);

/// A safetensors directory of two shards, whose bytes tell where they are, with an index, config.json and
/// tokenizer.json.
Tree make_source(bool coded = false, bool whole = false);

/// What a run ended with: Done, or the error's status, slug and sentence.
struct Outcome {
  ExitStatus status = ExitStatus::Done;
  std::string slug = "none";
  std::string message;
};

/// A file system with the source on it, and nothing but it; or with an older output.
class FaultBench {
 public:
  explicit FaultBench(const Target& target);

  MemorySystem& memory() { return *memory_; }
  /// Converts, or goes on with what an earlier run left.
  Outcome convert(bool resume = false);
  /// Of a run that nothing disturbs.
  const Tree& expected() const { return expected_; }
  /// How many calls such a run makes, in all or of one kind.
  i64 calls() const { return calls_; }
  i64 calls(CallKind kind) const { return calls_of_.at(kind); }

  /// From one call that is tried to the next. Under sanitizers every third: the ways, two or five, still come in turn.
  i64 step() const {
    if (is_thorough()) return 1;
    return (target_.sampled ? 13 : 1) * (kSanitized ? 3 : 1);
  }

  /// A new file system, as at first.
  void begin();
  /// Expects the source as it was, and the output absent, whole, or to be resumed. What a crash may have left of an
  /// empty directory counts as absent.
  void expect_nothing_lost() const;
  /// Whether the output is there.
  bool has_output() const;
  bool has_staging() const;
  /// Whether no file of the source was removed or changed.
  bool has_whole_source() const;
  /// Expects that --resume gives the same bytes as a run that nothing disturbed, and leaves nothing else.
  void expect_resumes();

 private:
  Outcome convert_part(bool resume, i64 part);
  Tree tree(const std::string& path) const;
  /// Whether that is below /disk.
  bool is_there(const std::string& name) const;
  void list_rows();
  void expect_source_consumed() const;
  void expect_same_when_plain();
  /// Expects each file of the source, or where it was removed to be, all that it holds below /disk.
  void expect_source_is_there() const;

  Target target_;
  Tree source_;
  /// The rows of a source that goes, file by file, each with its tensor's name. They stay whole in every layout.
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> rows_;
  Tree expected_;
  i64 calls_ = 0;
  std::map<CallKind, i64> calls_of_;
  std::unique_ptr<MemorySystem> memory_;
};

/// Every kind there is.
const std::vector<CallKind>& all_kinds();

}  // namespace glu_ckpt::faults
