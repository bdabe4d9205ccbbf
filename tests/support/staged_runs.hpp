#pragma once
/// Runs that leave something staged, for the tests of StagedDir.

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/staged_dir.hpp"

namespace glu_ckpt {

/// What the runs were asked for.
inline constexpr std::string_view kAsked = "what was asked";
inline constexpr std::string_view kJournal = StagedDir::kJournalName;

/// The names in a staging directory to which nothing was written yet.
inline const std::vector<std::string> kBegun = {std::string(kJournal), std::string(RunOwner::kName)};

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

inline std::string journal_name(int rank) {
  return rank == 0 ? std::string(kJournal) : fmt::format("{}.{}", kJournal, rank);
}

inline std::vector<std::string> texts_of(const Journal& journal) {
  std::vector<std::string> texts;
  for (const auto& entry : journal.entries())
    texts.emplace_back(reinterpret_cast<const char*>(entry.data()), entry.size());
  return texts;
}

/// Rank r of 4 writes the entries "r a" and "r b" to its journal and all of them stop.
inline void run_four_ranks(const std::filesystem::path& out) {
  StagedDir first(out, false, StagedMode::Create, kAsked);
  for (int rank = 0; rank < 4; ++rank) {
    const StagedDir joined(out, false, StagedMode::Join, rank == 0 ? "" : kAsked, rank);
    Journal& journal = rank == 0 ? first.journal() : joined.journal();
    for (const char* what : {"a", "b"}) journal.append(bytes_of(fmt::format("{} {}", rank, what)));
  }
  first.keep();
}

}  // namespace glu_ckpt
