#include "convert/parts.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "convert/check_output.hpp"
#include "convert/passes.hpp"
#include "convert/staging.hpp"
#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/file_names.hpp"
#include "model/known_orders.hpp"

namespace glu_ckpt {
namespace {

/// Tensors are cut between elements, of which the longest has so many bytes.
constexpr i64 kElementBytes = 16;

/// The ranges of the outputs that are no share of part `number`: what comes before it, and behind it. Parts have equal
/// numbers of bytes, but for leaves, which are not cut; any machine finds the same ones.
std::vector<DoneRange> shares_of_others(const Plan& plan, const ModelLeaves& leaves, i64 number, i64 parts) {
  const auto cut = [&](i64 before) {
    // Without a product of all bytes, which may not fit.
    i64 wanted = plan.bytes / parts * before + plan.bytes % parts * before / parts;
    for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
      const i64 bytes = plan.outputs[t].bytes;
      if (wanted < bytes)
        return std::pair(t, before == 0 ? 0 : leaves.cut(t, 0, wanted / kElementBytes * kElementBytes));
      wanted -= bytes;
    }
    return std::pair(plan.outputs.size(), i64{0});
  };
  const auto begin = cut(number - 1), end = number == parts ? std::pair(plan.outputs.size(), i64{0}) : cut(number);
  std::vector<DoneRange> others;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const i64 bytes = plan.outputs[t].bytes;
    const i64 first = t < begin.first ? bytes : t == begin.first ? begin.second : 0;
    const i64 last = t < end.first ? bytes : t == end.first ? end.second : 0;
    if (first > 0) others.push_back({t, 0, std::min(first, bytes), {}});
    if (last < bytes && first < bytes) others.push_back({t, std::max(first, last), bytes, {}});
  }
  return others;
}

/// Says that the output is not there yet, and why.
Converted pending(const Conversion& conversion, std::string text) {
  tell_note(conversion.run, "{}", text);
  Converted converted;
  converted.pending = std::move(text);
  converted.device = conversion.backend->name();
  return converted;
}

std::string name_of(const ConvertOptions& options) {
  return fmt::format("part {}/{}", options.part.number, options.part.of);
}

/// "2, 3"; of many the first few.
std::string few_text(const std::vector<i64>& numbers) {
  constexpr std::size_t kFew = 8;
  const auto shown = std::span(numbers).first(std::min(kFew, numbers.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "), shown.size() < numbers.size() ? ", ..." : "");
}

/// Makes the share of this part. Returns the numbers of those that are not done yet.
std::vector<i64> make_part(const Conversion& conversion, const ExpectedOutput& expected) {
  const auto alone = make_single_rank();
  const ClonePlan clones;
  const i64 number = conversion.options.part.number, of = conversion.options.part.of;
  Staging staging(conversion, expected, clones, *alone);
  StagedOutput& sink = staging.sink();
  try {
    if (!sink.part_sums(number)) {
      const Moved mine = move_pass(conversion, expected, staging, clones, nullptr, *alone,
                                   shares_of_others(conversion.plan, expected.output_leaves(), number, of));
      staging.check_source_unchanged();
      sink.end_part(moved_bytes(mine, sink.bytes_written()));
    }
  } catch (...) {
    staging.end_failed_pass();
  }
  std::vector<i64> left;
  for (i64 other = 1; other <= of; ++other)
    if (!sink.part_sums(other)) left.push_back(other);
  return left;
}

Converted commit_parts(const Conversion& conversion, const ExpectedOutput& expected) {
  const auto alone = make_single_rank();
  const ClonePlan clones;
  Staging staging(conversion, expected, clones, *alone, OutputMode::Lead);
  Published published;
  Moved moved;
  try {
    for (i64 part = 1; part <= conversion.options.part.of; ++part) {
      const std::optional<PartSums> sums = staging.sink().part_sums(part);
      if (!sums)
        fail(ErrorCode::Io, {conversion.output.string(), {}}, "{}: what part {} noted is no longer there; run it again",
             conversion.output.string(), part);
      staging.sink().import_sums(sums->checksums);
      add_moved(sums->moved, moved);
    }
    staging.check_source_unchanged();
    published = prove_and_publish(conversion, expected, staging, clones, moved, nullptr);
  } catch (...) {
    staging.end_failed_pass();
  }
  Converted converted;
  converted.proof = published.proof;
  converted.digest = has_unknown_glu(conversion.source.recognition) ? std::nullopt : published.digest;
  converted.bytes_written = staging.sink().bytes_written() + moved.bytes_written_elsewhere;
  converted.device = conversion.backend->name();
  if (std::string text = nans_text(conversion.plan, moved.nans); !text.empty()) {
    tell_warning(conversion.run, "{}", text);
    converted.warnings.push_back(std::move(text));
  }
  return converted;
}

}  // namespace

void check_parts(const std::filesystem::path& output, const ConvertOptions& options, int ranks) {
  const auto exclude = [&](bool is_given, std::string_view other, std::string_view why) {
    if (is_given) fail(ErrorCode::Usage, {output.string(), {}}, "--part and {} exclude one another: {}", other, why);
  };
  exclude(options.overwrite, "--overwrite", "one part would replace what another has finished");
  exclude(options.consume_source, "--consume-source", "the other parts need the source's files");
  exclude(ranks > 1, "MPI", "its ranks share one run by themselves");
}

Converted run_part(const Conversion& conversion) {
  const ConvertOptions& options = conversion.options;
  const std::string name = name_of(options), output = conversion.output.string();
  const ExpectedOutput expected(conversion, false);
  if (const std::vector<i64> left = make_part(conversion, expected); !left.empty())
    return pending(conversion, fmt::format("{} of {} is done; {} of {} parts {} not done yet ({}), and the last one "
                                           "finishes it",
                                           name, output, left.size(), options.part.of, left.size() == 1 ? "is" : "are",
                                           few_text(left)));
  try {
    return commit_parts(conversion, expected);
  } catch (const Error& error) {
    // Of parts that end together, one is the first.
    const bool is_taken = error.code() == ErrorCode::OutputBusy || error.code() == ErrorCode::NotFound;
    if (!is_taken || (error.code() == ErrorCode::NotFound && !path_exists(output_name(conversion.output)))) throw;
    return pending(conversion, fmt::format("{} of {} is done; another part finishes it", name, output));
  }
}

}  // namespace glu_ckpt
