/// Agreement about failures: every rank says how its step ended, rank 0 picks what all throw.

#include <limits>
#include <optional>

#include "core/byte_fields.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/ranks.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxInt = std::numeric_limits<int>::max();

/// Returns nothing where there is no failure.
std::vector<std::byte> failure_bytes(int rank, const std::optional<Error>& error) {
  if (!error) return {};
  ByteWriter out;
  out.number(rank);
  out.number(static_cast<i64>(error->code()));
  for (const std::string& text : {std::string(error->what()), error->file(), error->tensor()}) out.text(text);
  return out.take();
}

std::optional<RankError> parse_failure(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  ByteReader in(bytes, "a failure");
  const int rank = static_cast<int>(in.number(0, kMaxInt));
  const auto code = static_cast<ErrorCode>(in.number(0, static_cast<i64>(ErrorCode::Interrupted)));
  const std::string message = in.text(), file = in.text(), tensor = in.text();
  in.end();
  return RankError(rank, Error(code, message, file, tensor));
}

/// A signal reaches every rank in its own time, and what one of them fails with otherwise says more.
std::vector<std::byte> worst(const std::vector<std::vector<std::byte>>& failures) {
  std::vector<std::byte> found;
  for (const std::vector<std::byte>& bytes : failures) {
    const auto failure = parse_failure(bytes);
    if (!failure) continue;
    if (failure->code() != ErrorCode::Interrupted) return bytes;
    if (found.empty()) found = bytes;
  }
  return found;
}

}  // namespace

void together(Ranks& ranks, const std::function<void()>& step) {
  if (ranks.size() == 1) return step();
  std::optional<Error> error;
  try {
    step();
  } catch (...) {
    error = current_error();
    ranks.stop();
  }
  const auto failures = ranks.gather(failure_bytes(ranks.rank(), error));
  if (const auto failure = parse_failure(ranks.broadcast(worst(failures)))) throw RankError(*failure);
}

void at_first_rank(Ranks& ranks, const std::function<void()>& step) {
  together(ranks, [&] {
    if (ranks.rank() == 0) step();
  });
}

}  // namespace glu_ckpt
