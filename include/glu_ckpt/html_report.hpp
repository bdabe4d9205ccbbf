#pragma once
/// One page about a checkpoint, or about how two differ.

#include <filesystem>
#include <optional>
#include <string>

#include "glu_ckpt/diff.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

struct HtmlReportOptions {
  /// The caller knows this about A and B.
  SourceAnswers a;
  SourceAnswers b{.option_prefix = "--to-"};
  /// Compare only what fits a pattern (DiffOptions::tensors).
  std::string tensors = {};
  /// Run the experts of both on the same tokens, too, and show by how much the results differ.
  bool forward = false;
  ExpertCompute compute;
  /// The command line and the date, as the page's head has them; may be empty.
  std::string made_by = {};
};

struct HtmlReport {
  /// One file that needs no other: no script, no link, no picture from elsewhere.
  std::string html;
  /// The findings of diff() in A and B, where there is a B; the page has its figures.
  std::optional<Diff> diff = {};
};

/// Says what A is and what loads it, which bytes it consists of, how the rows of FC1 lie, and how large its experts
/// are; with B the same of that, and what differs. Reads the experts of A, with B all of both. Throws what inspect(),
/// diff() and verify_forward() throw.
HtmlReport html_report(const std::filesystem::path& path_a, const std::optional<std::filesystem::path>& path_b = {},
                       const HtmlReportOptions& options = {}, const RunOptions& run = {});

}  // namespace glu_ckpt
