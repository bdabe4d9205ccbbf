#pragma once
/// Words the error where nobody knows an order of gate and up.

#include <algorithm>
#include <string>
#include <vector>

#include "core/fail.hpp"

namespace glu_ckpt {

/// Options that would say orders that are not known, of one checkpoint or of two, so that all are asked for at once.
class UnknownOrders {
 public:
  void add(const std::string& file, const std::vector<std::string>& options) {
    if (!options.empty() && std::ranges::find(files_, file) == files_.end()) files_.push_back(file);
    for (const std::string& option : options)
      if (std::ranges::find(options_, option) == options_.end()) options_.push_back(option);
  }

  /// Throws UnknownGlu where there are any.
  void check() const {
    if (options_.empty()) return;
    std::string names, asked;
    for (const std::string& file : files_) names += file.empty() ? "" : file + ": ";
    for (const std::string& option : options_)
      if (!is_implied(option)) asked += fmt::format("{}{} ORDER", asked.empty() ? "" : " ", option);
    std::vector<std::string> options = options_;
    std::erase_if(options, [&](const std::string& option) { return is_implied(option); });
    const std::string text = fmt::format(
        "{}names and shapes do not tell in which order FC1 holds gate and up. If you know it, say {}, where an ORDER "
        "is "
        "contiguous or interleaved:K; or record it once with `glu-ckpt stamp`, which writes it into the checkpoint",
        names, asked);
    throw Error(ErrorCode::UnknownGlu, text, files_.front()).with_missing_options(options);
  }

 private:
  /// Returns whether the answer about the weights is taken for their optimizer's states.
  bool is_implied(const std::string& option) const {
    constexpr std::string_view kState = "optimizer-glu";
    if (!option.ends_with(kState)) return false;
    const std::string of_weights = option.substr(0, option.size() - kState.size()) + "glu";
    return std::ranges::find(options_, of_weights) != options_.end();
  }

  std::vector<std::string> files_;
  std::vector<std::string> options_;
};

}  // namespace glu_ckpt
